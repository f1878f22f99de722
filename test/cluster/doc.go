// Package cluster runs a real Kubernetes cluster on one Linux machine: etcd,
// the control plane, and nodes with containerd, kubelet and kube-proxy. Its
// pods are containers that run.
//
// # What it is made of
//
// Everything is built from Go modules, pinned by the files under components,
// and kept in a cache outside the repository (see Config.CacheDir), in modules of their own:
// their dependencies clash with the tests', and a change to one builds no other again. base is what
// Kubernetes stands on, kube is Kubernetes, which takes longest, and others are for what is installed
// in a cluster. The machine gives runc and nftables, which Start installs with apt-get where they
// are missing.
//
// # What it looks like
//
//	network namespace "fabric": etcd, kube-apiserver, kube-controller-manager,
//	                            kube-scheduler, bridge br0 172.30.0.1/16
//	node N, in network, mount and process namespaces of its own, 172.30.1.N:
//	                            containerd, kubelet, kube-proxy,
//	                            pods 10.244.N.0/24, Services 10.96.0.0/16
//
// A node sees its own processes, /run, /var/lib and /var/log, so that everything is where
// programs expect it: the kubelet's folder for device plugins, which cannot be
// moved, containerd's socket, /run/nvidia/driver with the simulated driver.
// The rest of the file system is the machine's. The machine's own network has
// no part in the cluster: a forwarder on loopback leads to the API server, and
// several clusters use the same addresses and never meet. Nothing leads from
// the cluster out of the machine.
//
// Namespaces are kept by a process each, gpumem-cluster-CLUSTER-NODE: when it is killed,
// the kernel kills all others in them and takes away their mounts and interfaces. What must
// be known for that is in state.json in the cluster's folder, for another process too.
//
// Pods have links of their own to the node (the CNI plugin ptp), so that Services work
// between pods of one node without the kernel's br_netfilter. There is no DNS.
//
// # What it is not
//
// The kubelets never evict for a full disk and collect no images. etcd does
// not wait for the disk. Nodes share the machine's processors and memory, and
// each one believes that it has them for itself. Processes that end are not started again: tests
// kill them and look what happens (Kill, StartProcess).
package cluster
