// Replaces libc's fsync (LD_PRELOAD) with an overloaded file system's: it takes 40 s while SLOW_SYNC_FILE exists.
#include <cstdlib>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" int fsync(int file) {
  if (const char* path = std::getenv("SLOW_SYNC_FILE"); path && access(path, F_OK) == 0) sleep(40);
  return static_cast<int>(syscall(SYS_fsync, file));
}
