// Replaces libc's fsync (LD_PRELOAD): as on an overloaded file system, it takes 40 s while SLOW_SYNC_FILE exists.
#include <cstdlib>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" int fsync(int file) {
  if (const char* path = std::getenv("SLOW_SYNC_FILE"); path && access(path, F_OK) == 0) sleep(40);
  return static_cast<int>(syscall(SYS_fsync, file));
}
