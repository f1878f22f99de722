// Package gpushare speaks for gpumem in the words of gpushare
// (github.com/AliyunContainerService/gpushare-scheduler-extender), so that what was made for
// gpushare goes on working: pods, kube-schedulers and tools of a cluster that moves from it.
//
// It does so under the domain aliyun.com alone (api.Names.GPUShare). Then it reads and writes
// gpushare's annotations, gives containers its environment and answers its inspect route.
//
// # Where to find the rest
//
// The routes are in package extender (gpushare.go there), the count of GPUs that its nodes have as a
// capacity in package deviceplugin (count.go). That the kubelet has IDs of gpushare's plugin for pods
// that ran before the move is for package allocation to know (gpushare.go there).
//
// # Invariants
//
//   - What gpushare wrote is read only where a scheduler can have written it: see api.Believed.
//   - Amounts are in units of the node, as gpushare's are.
package gpushare
