package api

import v1 "k8s.io/api/core/v1"

// GPUClients is the label by which NVIDIA's GPU Operator 26.7 and newer stops other DaemonSets before it unloads the
// driver: it waits for the pods of each DaemonSet whose nodeSelector has the key (NVIDIA/k8s-driver-manager 0.12).
const GPUClients = "nvidia.com/gpu.deploy.client"

// GPUClientsStopped reports whether a node has the label with a value other than "true", which nodeSelectors select.
func GPUClientsStopped(node *v1.Node) bool {
	value, labelled := node.Labels[GPUClients]
	return labelled && value != "true"
}
