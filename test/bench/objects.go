package main

import (
	"fmt"
	"maps"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// gpuPods is how many of five pods have GPU memory.
const gpuPods = 2

// wholePod describes the i-th pod as an API server has it once it runs: with all
// that admission, the scheduler, the kubelet and those who write managed fields
// add. Two in five have GPU memory.
func wholePod(names api.Names, i int) (*v1.Pod, error) {
	const hash = "7c9d8f6b54"
	app := fmt.Sprintf("app-%03d", i%300)
	node := i / 5 % memoryNodes
	started := metav1.NewTime(time.Unix(1.76e9+int64(i), 0))
	automatic, replicas, mode := true, "ReplicaSet", int32(0o644)
	expiration := int64(3607)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%02d", i%40), Name: fmt.Sprintf("%s-%s-%05x", app, hash, i),
			GenerateName: app + "-" + hash + "-", UID: types.UID(fmt.Sprintf("%08x-5b1e-4a5c-9d2f-%012x", i, i)),
			ResourceVersion: fmt.Sprint(1000000 + i), CreationTimestamp: started, Generation: 1,
			Labels: map[string]string{
				"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app + "-production", "app.kubernetes.io/component": "server",
				"app.kubernetes.io/managed-by": "Helm", "pod-template-hash": hash, "team": fmt.Sprintf("team-%02d", i%40),
			},
			Annotations: map[string]string{
				"prometheus.io/scrape": "true", "prometheus.io/port": "9090",
				"kubectl.kubernetes.io/restartedAt": started.Format(time.RFC3339),
				"checksum/config":                   strings.Repeat(fmt.Sprintf("%08x", i), 8),
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: replicas, Name: app + "-" + hash, UID: types.UID(fmt.Sprintf("%08x-77aa-4a5c-9d2f-%012x", i%300, i%300)), Controller: &automatic, BlockOwnerDeletion: &automatic}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				managed("kube-controller-manager", "", "f:metadata", "f:spec", 1300),
				managed("kubelet", "status", "f:status", "f:conditions", 1500),
			},
		},
		Spec: v1.PodSpec{
			NodeName: nodeName(node), SchedulerName: "gpumem-scheduler", ServiceAccountName: "default", RestartPolicy: v1.RestartPolicyAlways,
			DNSPolicy: v1.DNSClusterFirst, Priority: new(int32), SecurityContext: &v1.PodSecurityContext{},
			Tolerations: []v1.Toleration{
				{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: new(int64)},
				{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: new(int64)},
			},
			Volumes: []v1.Volume{
				{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: app}, DefaultMode: &mode}}},
				{Name: "kube-api-access", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: &mode, Sources: []v1.VolumeProjection{
					{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &expiration}},
					{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []v1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
				}}}},
			},
			Containers: []v1.Container{wholeContainer("main", app, "1", "4Gi"), wholeContainer("metrics", app, "50m", "64Mi")},
		},
		Status: v1.PodStatus{
			Phase: v1.PodRunning, HostIP: "10.0.0.1", PodIP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), StartTime: &started, QOSClass: v1.PodQOSBurstable,
		},
	}
	for _, kind := range []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: kind, Status: v1.ConditionTrue, LastTransitionTime: started})
	}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{
			Name: c.Name, Ready: true, Image: c.Image, ImageID: "registry.example.org/" + app + "@sha256:" + strings.Repeat("0123456789abcdef", 4),
			ContainerID: "containerd://" + strings.Repeat("fedcba9876543210", 4), Started: &automatic,
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: started}},
		})
	}
	if i%5 < gpuPods {
		return p, giveGPU(names, p, node, i)
	}
	return p, nil
}

// giveGPU gives the pod 3 units of a GPU of its node.
func giveGPU(names api.Names, p *v1.Pod, node, i int) error {
	const units = 3
	p.Spec.Containers[0].Resources.Limits[names.GPUMem()] = *resource.NewQuantity(units, resource.DecimalSI)
	p.Spec.Containers[0].Resources.Requests[names.GPUMem()] = *resource.NewQuantity(units, resource.DecimalSI)
	on := placement.NewNode(nodeName(node), inventory(node), nil)
	device := on.Devices[i/(5*memoryNodes)*gpuPods%gpusPerNode+i%5].UUID
	assigned, err := names.AssignmentAnnotations(placement.Assignment{Shares: []placement.Share{{Device: device, Units: gpu.Units(units)}}}, on)
	maps.Copy(p.Annotations, assigned)
	return err
}

func wholeContainer(name, app, cpu, memory string) v1.Container {
	env := []v1.EnvVar{{Name: "POD_NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}}}
	for k := range 8 {
		env = append(env, v1.EnvVar{Name: fmt.Sprintf("SETTING_%d", k), Value: fmt.Sprintf("https://%s-%d.example.org/v1", app, k)})
	}
	probe := &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz", Scheme: v1.URISchemeHTTP}}, TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3}
	list := func() v1.ResourceList {
		return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	}
	return v1.Container{
		Name: name, Image: "registry.example.org/" + app + ":1.2.3", Args: []string{"--listen=:8080", "--config=/etc/" + app + "/config.yaml"},
		Env: env, Resources: v1.ResourceRequirements{Limits: list(), Requests: list()}, LivenessProbe: probe, ReadinessProbe: probe,
		Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: v1.ProtocolTCP}},
		VolumeMounts: []v1.VolumeMount{
			{Name: "config", MountPath: "/etc/" + app, ReadOnly: true},
			{Name: "kube-api-access", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
		},
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile, ImagePullPolicy: v1.PullIfNotPresent,
	}
}

// managed is an entry of managed fields of about some size.
func managed(manager, subresource, a, b string, size int) metav1.ManagedFieldsEntry {
	var fields strings.Builder
	for k := 0; fields.Len() < size; k++ {
		fmt.Fprintf(&fields, `,"k:{\"name\":\"%s-%d\"}":{".":{},%q:{},%q:{}}`, manager, k, a, b)
	}
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", Subresource: subresource,
		FieldsV1: metav1.NewFieldsV1("{" + fields.String()[1:] + "}"),
	}
}

// wholeNode describes the i-th node as an API server has it.
func wholeNode(names api.Names, i int) (*v1.Node, error) {
	inv := inventory(i)
	value, err := api.EncodeInventory(inv)
	if err != nil {
		return nil, err
	}
	name := nodeName(i)
	offers := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("96"), v1.ResourceMemory: resource.MustParse("1Ti"), v1.ResourcePods: resource.MustParse("250"),
		names.GPUMem(): *resource.NewQuantity(int64(inv.Allocatable()), resource.DecimalSI),
	}
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(fmt.Sprintf("%08x-0000-4a5c-9d2f-%012x", i, i)), ResourceVersion: fmt.Sprint(1000 + i),
			Labels: map[string]string{
				v1.LabelHostname: name, v1.LabelArchStable: "amd64", v1.LabelOSStable: "linux", v1.LabelInstanceTypeStable: "gpu.8x",
				v1.LabelTopologyRegion: "region-1", v1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3), "nvidia.com/gpu.product": strings.ReplaceAll(inv.Devices[0].Model, " ", "-"),
			},
			Annotations:   map[string]string{names.Inventory(): value, "node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("kubelet", "status", "f:status", "f:images", 4000)},
		},
		Status: v1.NodeStatus{
			Capacity: offers, Allocatable: offers,
			NodeInfo: v1.NodeSystemInfo{KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.3.7", KernelVersion: "6.8.0", OSImage: "Linux"},
		},
	}
	for k := range 50 {
		n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{fmt.Sprintf("registry.example.org/app-%03d:1.2.3", k)}, SizeBytes: 1 << 30})
	}
	for _, kind := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		status := v1.ConditionFalse
		if kind == v1.NodeReady {
			status = v1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: kind, Status: status, Reason: "KubeletHasSufficient", Message: "kubelet has sufficient of it"})
	}
	return n, nil
}
