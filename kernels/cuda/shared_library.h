// SharedLibrary: a library that a machine may lack, loaded when an instance is created; its functions are looked up by
// name.
#pragma once

#include <dlfcn.h>
#include <initializer_list>
#include <memory>
#include <string>

#include "base/check.h"

namespace trivet {

class SharedLibrary {
 public:
  // name: for messages. files: the first one that can be loaded is used. If none can: throws ConfigError with `lack`.
  SharedLibrary(std::string name, std::initializer_list<std::string> files, Lack lack = Lack::none)
      : name_(std::move(name)) {
    for (const std::string& file : files)
      if (!handle_) handle_.reset(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
    if (!handle_) throw ConfigError(name_ + " cannot be loaded: " + dlerror(), lack);
  }

  // A function found by name, convertible to a pointer of its type. Throws ConfigError if the library lacks it.
  class Function {
   public:
    template <class F>
    operator F*() const {
      return reinterpret_cast<F*>(address_);
    }

   private:
    friend SharedLibrary;
    explicit Function(void* address) : address_(address) {}
    void* address_;
  };
  Function operator[](const char* symbol) const {
    void* const address = dlsym(handle_.get(), symbol);
    if (!address) throw ConfigError("the " + name_ + " that was loaded has no " + symbol);
    return Function(address);
  }

 private:
  struct Close {
    void operator()(void* handle) const { dlclose(handle); }
  };
  std::string name_;
  std::unique_ptr<void, Close> handle_;
};

}  // namespace trivet
