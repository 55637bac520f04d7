// Variables that a program sets for itself, over those of the process's environment.
#ifndef PS_INTERNAL_ENV_H_
#define PS_INTERNAL_ENV_H_

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

namespace ps {

/// The program's variables. Filled before Start, which reads them once.
class Environment {
 public:
  static Environment *Get() { return Shared().get(); }
  static std::shared_ptr<Environment> _GetSharedRef() { return Shared(); }

  /// Replaces the program's variables; the environment's stay beneath them.
  static Environment *Init(const std::unordered_map<std::string, std::string> &variables) {
    Get()->variables_.clear();
    Get()->variables_.insert(variables.begin(), variables.end());
    return Get();
  }

  /// Its value, or null. Valid until the variable changes.
  const char *find(const char *name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? std::getenv(name) : found->second.c_str();
  }

  /// The program's own ones.
  const std::map<std::string, std::string> &own() const { return variables_; }

 private:
  Environment() = default;
  static std::shared_ptr<Environment> &Shared() {
    static std::shared_ptr<Environment> environment(new Environment());
    return environment;
  }
  std::map<std::string, std::string> variables_;
};

}  // namespace ps
#endif  // PS_INTERNAL_ENV_H_
