// Package e2e tests gpumem on a real cluster: etcd, API server, kube-scheduler,
// kubelet and containerd, with the chart installed by Helm and the unmodified
// binaries. Only the GPUs are simulated.
//
// All tests share one cluster. Each leaves it as it found it: at its end no pod
// holds anything, in the books and at the kubelets, or the test fails for a leak.
package e2e
