// Package serve runs HTTP servers from start to graceful end, and answers the
// questions that a kubelet and a person ask a process: does it live, is it
// ready, which version is it.
//
// # Invariants
//
//   - Every read and write of a server has a time limit, and a server that has to
//     end lets the requests under way come to theirs (Grace).
//   - What others can make a server hold is bounded: how many connections it keeps, how
//     much of headers it reads. One connection too many is served, and an idle one closed
//     for it, so that a probe is answered while others flood the port.
//   - A process lives while its lock can be had: one that is deadlocked answers no
//     probe, and the kubelet starts it again. What it merely lacks is no reason to.
//   - Ready means that nothing is missing. What is missing has a line in the
//     answer, and what is not has one too.
//   - With MutualTLS, a client is served only with a certificate that one of the
//     authorities has signed and that has the one name. It counts for one
//     connection: there are no session tickets.
//
// # Decisions
//
// Who asks how a process is (Probes) is not who may bind pods: they are served on
// different ports, the first to everybody. So nothing but reading is behind
// Probes, and there is no pprof.
//
// Certificates are read again for each connection. To watch their files would be
// one more thing that can fail without a word, and connections of kube-scheduler
// are few and long.
package serve
