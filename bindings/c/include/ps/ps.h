// The interface of ps-lite, served by Gradwire: include it in place of ps-lite's and link libgradwire.
//
// What differs: a request that cannot be served ends with an exception (dmlc::Error) in Wait, within its deadline, and does
// not hang; keys that are not sorted are refused with their position; requests of one worker to one server are served in
// the order in which they were made; nothing ends the process.
#ifndef PS_PS_H_
#define PS_PS_H_

#include "ps/base.h"
#include "ps/kv_app.h"
#include "ps/simple_app.h"

namespace ps {

inline int NumWorkers() { return Postoffice::Get()->num_workers(); }
inline int NumServers() { return Postoffice::Get()->num_servers(); }
inline bool IsWorker() { return Postoffice::Get()->is_worker(); }
inline bool IsServer() { return Postoffice::Get()->is_server(); }
inline bool IsScheduler() { return Postoffice::Get()->is_scheduler(); }
/// This process's rank among those of its role.
inline int MyRank() { return Postoffice::Get()->my_rank(); }

/// Joins the cluster that DMLC_* variables name, in the role that they say, and waits until all nodes have.
inline void Start(int customer_id, const char *argv0 = nullptr) {
  Postoffice::Get()->Start(customer_id, argv0, true);
}
inline void Start(const char *argv0 = nullptr) { Start(0, argv0); }

/// The same without the barrier at its end.
inline void StartAsync(int customer_id, const char *argv0 = nullptr) {
  Postoffice::Get()->Start(customer_id, argv0, false);
}
inline void StartAsync(const char *argv0 = nullptr) { StartAsync(0, argv0); }

/// The same with the role and the rank that the program says; a negative rank is the scheduler's to choose.
inline void StartPS(int customer_id, Node::Role role, int rank, bool do_barrier, const char *argv0 = nullptr) {
  Postoffice::Get()->Choose(role, rank);
  Postoffice::Get()->Start(customer_id, argv0, do_barrier);
}

/// Leaves the cluster; with a barrier, when all nodes do. A server and the scheduler stay until all workers have left.
inline void Finalize(int customer_id, bool do_barrier = true) {
  Postoffice::Get()->Finalize(customer_id, do_barrier);
}
inline void Finalize(bool do_barrier = true) { Finalize(0, do_barrier); }
inline void Finalize(int customer_id, Node::Role, bool do_barrier = true) { Finalize(customer_id, do_barrier); }

/// Called when this process has left.
inline void RegisterExitCallback(const std::function<void()> &callback) {
  Postoffice::Get()->RegisterExitCallback(callback);
}

}  // namespace ps
#endif  // PS_PS_H_
