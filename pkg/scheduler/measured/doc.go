// Package measured asks the device plugins how much memory of each GPU is in use, for the page.
//
// # Invariants
//
//   - It asks only while somebody looks at the page, and each plugin at most once in Freshness.
//   - Nothing is decided by what it returns: a GPU that no plugin tells of has no amount.
//   - The device plugins are the pods with their labels in the process's own namespace: who may
//     create pods there could replace gpumem itself.
//   - An answer is read up to a bound.
//
// # Decisions
//
// It asks at the pods' addresses, not through the API server: that would take the right to reach
// every port of every pod of the namespace. Where network policies are enforced, the chart's allow
// it while the page is on.
package measured
