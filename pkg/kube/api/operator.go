package api

import v1 "k8s.io/api/core/v1"

// GPUClients is the node label that NVIDIA's GPU Operator 26.7 and newer changes to stop other DaemonSets
// before it unloads the driver. The GPU Operator then waits for the pods of each DaemonSet with this key
// in its nodeSelector (NVIDIA/k8s-driver-manager 0.12).
const GPUClients = "nvidia.com/gpu.deploy.client"

// GPUClientsStopped reports whether the node has the label with a value other than "true", the value that
// nodeSelectors select.
func GPUClientsStopped(node *v1.Node) bool {
	value, labelled := node.Labels[GPUClients]
	return labelled && value != "true"
}
