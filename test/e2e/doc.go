// Package e2e tests gpumem on a real cluster: etcd, API server, kube-scheduler,
// kubelet and containerd, with the chart installed by Helm and the unmodified
// binaries. Only the GPUs are simulated.
//
// All tests share one cluster. Each leaves it as it found it: at its end no pod
// holds anything, in the books and at the kubelets, or the test fails for a leak.
//
// # Decisions
//
// A cluster for each test would keep tests apart better, and would take half a
// minute each. One for all finds more: what a test leaves behind shows, and all that
// gpumem's accounts ask of the API server while the tests run is looked through at the
// end, for rights that are missing and for rights that nobody needs. Tests that
// install gpumem another way do it as a release of their own, in another domain,
// beside the one that all share.
//
// A test waits for what must come, and for nothing by the clock; the limit of each
// wait (patience) is only there so that a failure is told.
package e2e
