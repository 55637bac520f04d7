// How the headers reach the library: its errors as exceptions, its objects owned.
#ifndef PS_INTERNAL_LIBRARY_H_
#define PS_INTERNAL_LIBRARY_H_

#include <exception>
#include <memory>
#include <string>

#include "dmlc/logging.h"
#include "gradwire.h"

namespace ps {
namespace detail {

/// Throws what the library said, where it said no.
inline void Must(GradwireCode code, const std::string &what) {
  if (code == GRADWIRE_CODE_OK) return;
  throw dmlc::Error(what + ": " + gradwire_last_error());
}

/// Runs what is the program's: a handler or a callback. Whatever it throws ends here, because an exception that left a thread of
/// the library would end the process. False, with the reason, if it threw.
template <typename Call>
bool Ran(const Call &call, std::string *reason) {
  try {
    call();
    return true;
  } catch (const std::exception &error) {
    *reason = error.what();
  } catch (...) {
    *reason = "it threw something that is no std::exception";
  }
  return false;
}

struct Free {
  void operator()(GradwireSettings *it) const { gradwire_settings_free(it); }
  void operator()(GradwireClient *it) const { gradwire_client_free(it); }
  void operator()(GradwireServer *it) const { gradwire_server_free(it); }
  void operator()(GradwireScheduler *it) const { gradwire_scheduler_free(it); }
  void operator()(GradwireMessages *it) const { gradwire_messages_free(it); }
  void operator()(GradwireMessage *it) const { gradwire_message_free(it); }
  void operator()(GradwireReply *it) const { gradwire_reply_free(it); }
  void operator()(GradwireRequest *it) const { gradwire_request_free(it); }
  void operator()(GradwireTable *it) const { gradwire_table_free(it); }
  void operator()(GradwireRowsHandle *it) const { gradwire_rows_free(it); }
};

/// Owns memory that the library borrows: a copy of the owner goes with each piece that is passed.
template <typename Owner>
GradwirePiece Lend(const Owner &owner, const void *data, uint64_t bytes) {
  GradwirePiece piece;
  piece.data = data;
  piece.bytes = bytes;
  piece.context = new Owner(owner);
  piece.release = [](void *kept) { delete static_cast<Owner *>(kept); };
  return piece;
}

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_LIBRARY_H_
