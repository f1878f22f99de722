// Package usageclient reads the used memory of each GPU from the metrics of the device plugins, for the page.
//
// # Invariants
//
//   - It reads only while somebody views the page, and each plugin at most once per MaxAge.
//   - Its results affect no scheduling decision. A GPU that no plugin reports has no amount.
//   - It identifies the device plugins by their labels in the process's own namespace. This is safe: a user
//     who may create pods in this namespace could replace gpumem itself.
//   - The size of a response is bounded.
//
// # Decisions
//
// It connects to the pods' addresses, not through the API server's proxy: the proxy would need access to
// every port of every pod in the namespace. If the cluster enforces network policies, the chart's policies
// allow these connections while the page is enabled.
package usageclient
