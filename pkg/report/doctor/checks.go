package doctor

// A Check is one condition of a working installation.
type Check struct {
	Name      string // the field "check" of its findings
	Condition string // the condition as a sentence
	Remedy    string // for findings without their own remedy
	Doc       string // the page of docs/ about the check

	run func(*State, installation) findings
}

// Checks returns the table of all checks.
func Checks() []Check {
	return []Check{
		{"installed", "One device plugin and one scheduler serve the resource domain.", install, "install.md", checkInstalled},
		{"daemonsets", "The pods of the device plugin and of the MPS daemon exist and are ready.",
			"kubectl -n gpumem-system describe daemonset NAME shows why its pods are missing: usually Pod Security (label the namespace pod-security.kubernetes.io/enforce=privileged) or a quota for priority classes", "troubleshooting.md#a-node-with-a-gpu-offers-nothing", checkDaemonSets},
		{"gpu-nodes", "Each node with the label nvidia.com/gpu.present=true runs the device plugin, and the GPU Operator can stop it for a driver upgrade.",
			"let devicePlugin.nodeSelector, .affinity and .tolerations fit the node, or remove the label", "install.md", checkGPUNodes},
		{"scheduler", "The scheduler is ready and has two replicas.",
			"kubectl -n gpumem-system describe deployment NAME, and the logs of its pods, show the reason", "runbooks.md", checkScheduler},
		{"kube-scheduler", "The chart's kube-scheduler has a configuration with a profile, the version of the API server, and OpportunisticBatching on.",
			"helm upgrade the release: its kube-scheduler then gets a configuration, and the cluster's version", "upgrading.md", checkKubeScheduler},
		{"certificates", "The certificates for calls from your own kube-scheduler are valid for 30 more days.",
			"helm upgrade the release, and copy kube-scheduler's files again", "extender.md", checkCertificates},
		{"policies", "The admission policies exist and are bound.", "helm upgrade the release with admission.holdDevicePlugin and admission.holdAnnotations true", "security.md", checkPolicies},
		{"versions", "Device plugin, scheduler and this command have the same minor version.", "upgrade the older one", "upgrading.md", checkVersions},
		{"nodes", "Nodes with GPUs are Ready, their inventory is readable and has the installation's unit and enforcement level.",
			"kubectl describe node NAME, and the log of the node's device plugin, show the reason", "limits.md", checkNodes},
		{"resource", "The kubelet of a node with GPUs offers the resource that its label selects, as much as the device plugin lists.",
			"after a restart or a GPU failure, a difference ends within a minute. If it remains, delete the plugin's pod on that node: the next one registers again", "troubleshooting.md#a-node-with-a-gpu-offers-nothing", checkResource},
		{"gpus", "All GPUs are healthy, uncordoned, and have no more memory allocated than they offer.",
			"kubectl inspect gpumem drain NODE GPU moves pods off a GPU; kube-scheduler counts those that stay against the node's other GPUs", "reference.md#health", checkGPUs},
		{"other-drivers", "No other driver offers the same GPUs: NVIDIA's device plugin, or a driver that publishes ResourceSlices.",
			"split the GPUs between both (devicePlugin.devices, and the other driver's own setting), or remove one of them from the node", "install.md", checkOtherDrivers},
		{"claims", "Kubernetes has the version and the feature gates that claims need, and nodes with claims publish their GPUs.",
			"the log of the node's device plugin shows the reason", "claims.md", checkClaims},
		{"pods", "Pods with GPU memory name a scheduler that asks gpumem, gpushare placed none of them, and none is a client of MPS protocol 3.",
			"set spec.schedulerName in the template of these pods, leave spec.nodeName empty, and recreate the pods", "install.md#run-pods-unchanged", checkPods},
		{"features", "The installation uses stable features, or you accept the stage of the others.", "the table of features lists the promises of each stage", "stability.md#features", checkFeatures},
	}
}
