// Package serve runs HTTP servers from start to graceful shutdown. Its probes report whether a process
// is alive and ready, and its version.
//
// # Invariants
//
//   - Every read and write of a server has a timeout. On shutdown, requests in progress get time to
//     finish (Grace).
//   - The number of connections and the size of headers are limited. A connection beyond the limit is
//     served, and an idle one is closed instead, so probes are answered even if clients flood the port.
//   - A process is alive while its lock is available. In a deadlock the probe fails, and the kubelet
//     restarts the process. A missing dependency does not fail this probe.
//   - A process is ready if nothing is missing. The response has one line per check.
//   - With MutualTLS, a client needs a certificate that one of the authorities has signed, with the
//     configured name. The certificate is verified for each connection, without session tickets.
//
// # Decisions
//
// Probes and bindings are served on different ports, and anyone can read the probes. So Probes serves
// only reads, and no pprof.
//
// Certificates are read again for each connection. A watch of the files could fail silently, and
// kube-scheduler opens few and long connections.
package serve
