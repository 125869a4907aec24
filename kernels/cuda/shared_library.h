// SharedLibrary: a library that a machine may lack, loaded when an instance is made; its functions are looked up by
// name.
#pragma once

#include <dlfcn.h>
#include <initializer_list>
#include <memory>
#include <string>

#include "kernels/base/check.h"

namespace trivet {

class SharedLibrary {
 public:
  // name: as people know it. files: the first that can be loaded. Where there is none: ConfigError, which opens with
  // `context`.
  SharedLibrary(std::string name, std::initializer_list<std::string> files, const std::string& context = "")
      : name_(std::move(name)) {
    for (const std::string& file : files)
      if (!handle_) handle_.reset(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
    if (!handle_) throw ConfigError(context + name_ + " cannot be loaded: " + dlerror());
  }

  // ConfigError where the library has no such function.
  template <class Function>
  void find(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(dlsym(handle_.get(), symbol));
    if (!function) throw ConfigError("the " + name_ + " that was loaded has no " + symbol);
  }

 private:
  struct Close {
    void operator()(void* handle) const { dlclose(handle); }
  };
  std::string name_;
  std::unique_ptr<void, Close> handle_;
};

}  // namespace trivet
