package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

const namespace = "gpumem-system"

func now() time.Time { return time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC) }

var (
	names        = kubetest.Names
	setInventory = kubetest.SetInventory
)

func meta(component, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(now().Add(-time.Hour)),
		Labels: map[string]string{partOfLabel: "gpumem", instance: "gpumem", "app.kubernetes.io/component": component, version: "0.1.0"},
	}
}

func readyPod(component, name, node string) v1.Pod {
	return v1.Pod{
		ObjectMeta: meta(component, name), Spec: v1.PodSpec{NodeName: node},
		Status: v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}
}

func selects(component string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/component": component}}
}

// inventory returns the inventory of a node with two GPUs of 14 units.
func inventory() gpu.Inventory {
	inv := gpu.Inventory{UnitMiB: 1024, Enforcement: gpu.EnforcementAdvisory}
	for i := range 2 {
		inv.Devices = append(inv.Devices, gpu.Device{
			UUID: gpu.UUID(fmt.Sprintf("GPU-%08d", i)), Index: i, MemoryMiB: 15360, Allocatable: 14, NUMANode: -1,
		})
	}
	return inv
}

// userPod returns a user's pod that requests two units.
func userPod(t testing.TB, name, node string) v1.Pod {
	t.Helper()
	pod := v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, CreationTimestamp: metav1.NewTime(now().Add(-time.Hour))},
		Spec: v1.PodSpec{NodeName: node, SchedulerName: "gpumem-scheduler", Containers: []v1.Container{{
			Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{names(t).GPUMem(): *resource.NewQuantity(2, resource.DecimalSI)}},
		}}},
	}
	if node == "" {
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable}}
		return pod
	}
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}
	on := placement.Node{Name: node, Inventory: gpu.Inventory{UnitMiB: 1024}, Devices: []placement.Device{{Device: &inventory().Devices[0]}}}
	a, err := names(t).AssignmentAnnotations(placement.Assignment{Shares: []placement.Share{{Device: on.Devices[0].UUID, Units: 2}}}, on)
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations = a
	return pod
}

// publishes returns a ResourceSlice with one GPU.
func publishes(driver, node, uuid string) resourceapi.ResourceSlice {
	return resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node, Devices: []resourceapi.Device{{
		Name: "gpu", AllowMultipleAllocations: new(true), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: &uuid}},
	}}}}
}

// byClaims makes the node offer its GPUs by claims.
func byClaims(t testing.TB) func(*State) {
	return func(s *State) {
		inv := inventory()
		for i := range inv.Devices {
			inv.Devices[i].Status.ByClaims = true
		}
		setInventory(t, &s.Nodes[0], inv)
		s.Nodes[0].Labels[s.Names.API()] = "claims"
		delete(s.Nodes[0].Status.Allocatable, s.Names.GPUMem())
		s.Slices = []resourceapi.ResourceSlice{publishes("gpumem.dev", "gpu-a", "GPU-00000001")}
	}
}

// healthy returns a cluster without findings: two nodes, one with GPUs.
func healthy(t testing.TB) *State {
	node := v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-a", Labels: map[string]string{gpuPresent: "true"}, CreationTimestamp: metav1.NewTime(now().Add(-time.Hour))},
		Status:     v1.NodeStatus{Allocatable: v1.ResourceList{names(t).GPUMem(): *resource.NewQuantity(28, resource.DecimalSI)}},
	}
	setInventory(t, &node, inventory())
	var policies []admissionv1.ValidatingAdmissionPolicy
	var bindings []admissionv1.ValidatingAdmissionPolicyBinding
	for _, of := range [][2]string{{"device-plugin", "gpumem-device-plugin"}, {"admission", "gpumem-hold-annotations"}} {
		component, name := of[0], of[1]
		policies = append(policies, admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta(component, name)})
		bindings = append(bindings, admissionv1.ValidatingAdmissionPolicyBinding{
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
		})
	}
	return &State{
		Names: names(t), Now: now(), ClientVersion: "v0.1.0", ServerVersion: "v1.36.3",
		Nodes: []v1.Node{node, {ObjectMeta: metav1.ObjectMeta{Name: "cpu-1"}}},
		Pods: []v1.Pod{
			readyPod("device-plugin", "plugin-a", "gpu-a"), readyPod("scheduler", "scheduler-1", "cpu-1"), readyPod("scheduler", "scheduler-2", "gpu-a"),
			userPod(t, "runs", "gpu-a"), userPod(t, "waits", ""),
		},
		DaemonSets: []appsv1.DaemonSet{{
			ObjectMeta: meta("device-plugin", "gpumem-device-plugin"),
			Spec: appsv1.DaemonSetSpec{Selector: selects("device-plugin"), Template: v1.PodTemplateSpec{Spec: v1.PodSpec{Containers: []v1.Container{{
				Name: "gpumem-device-plugin", Args: []string{"--resource-domain=gpumem.dev", "--unit-mib=1024", "--enforcement=auto"},
			}}}}},
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, NumberReady: 1},
		}},
		Deployments: []appsv1.Deployment{{
			ObjectMeta: meta("scheduler", "gpumem-scheduler"),
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: selects("scheduler"), Template: v1.PodTemplateSpec{Spec: v1.PodSpec{
				InitContainers: []v1.Container{{Name: "gpumem-extender", Args: []string{"--resource-domain=gpumem.dev"}}},
				Containers:     []v1.Container{{Name: "kube-scheduler", Image: "registry.k8s.io/kube-scheduler:v1.36.3"}},
			}}},
			Status: appsv1.DeploymentStatus{ReadyReplicas: 2},
		}},
		ConfigMaps: []v1.ConfigMap{{
			ObjectMeta: meta("scheduler", "gpumem-scheduler"), Data: map[string]string{"config.yaml": "profiles: [{schedulerName: gpumem-scheduler, plugins: {multiPoint: {enabled: [{name: GPUMemory}]}}}]"},
		}},
		Policies: policies,
		Bindings: bindings,
	}
}

// offerShares makes the node offer its GPUs in shares, and gives shares to the node's pod.
func offerShares(t testing.TB, s *State) {
	inv := inventory()
	inv.UnitMiB = 0
	for i := range inv.Devices {
		inv.Devices[i].Allocatable, inv.Devices[i].ShareMiB = 10, 1400
	}
	setInventory(t, &s.Nodes[0], inv)
	s.Nodes[0].Status.Allocatable = v1.ResourceList{s.Names.GPUShares(): *resource.NewQuantity(20, resource.DecimalSI)}
	for i := range s.Pods {
		for _, c := range s.Pods[i].Spec.Containers {
			if amount, has := c.Resources.Limits[s.Names.GPUMem()]; has {
				delete(c.Resources.Limits, s.Names.GPUMem())
				c.Resources.Limits[s.Names.GPUShares()] = amount
			}
		}
	}
}

// addMPS adds the chart's MPS daemon, with a pod on the node with GPUs.
func addMPS(s *State) *v1.Pod {
	ds := *s.DaemonSets[0].DeepCopy()
	ds.ObjectMeta = meta("mps", "gpumem-mps")
	ds.Spec.Selector, ds.Spec.Template.Spec = selects("mps"), v1.PodSpec{Containers: []v1.Container{{Name: "gpumem-mps"}}}
	s.DaemonSets = append(s.DaemonSets, ds)
	s.Pods = append(s.Pods, readyPod("mps", "mps-a", "gpu-a"))
	return &s.Pods[len(s.Pods)-1]
}

func waiting(container, reason, message string) v1.ContainerStatus {
	return v1.ContainerStatus{Name: container, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func ended(reason string, code int32, message string) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: reason, ExitCode: code, Message: message}}
}

// crashing returns the status of a container that keeps restarting.
func crashing(container string, last v1.ContainerState) v1.ContainerStatus {
	c := waiting(container, "CrashLoopBackOff", "back-off 5m0s restarting failed container")
	c.LastTerminationState = last
	return c
}

// existing changes a state: the cluster's own kube-scheduler calls gpumem-extender. Parameter ends is the expiry of
// the certificates.
func existing(t testing.TB, ends time.Time) func(*State) {
	return func(s *State) {
		d := &s.Deployments[0]
		d.Name, d.Labels[component], d.Status.ReadyReplicas = "gpumem-extender", "extender", 1
		d.Spec.Template.Spec.Containers = s.Deployments[0].Spec.Template.Spec.InitContainers
		d.Spec.Template.Spec.InitContainers = nil
		d.Spec.Template.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "gpumem-extender-tls"}}}}
		s.ConfigMaps = nil
		for _, name := range []string{"gpumem-extender-tls", "gpumem-extender-client"} {
			s.Secrets = append(s.Secrets, v1.Secret{ObjectMeta: meta("extender", name), Data: map[string][]byte{v1.TLSCertKey: certificate(t, ends)}})
		}
	}
}

func certificate(t testing.TB, ends time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: ends.Add(-time.Hour), NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestExamine changes one property of a healthy cluster at a time.
func TestExamine(t *testing.T) {
	long, soon := now().AddDate(1, 0, 0), now().AddDate(0, 0, 10)
	for name, tc := range map[string]struct {
		change func(*State)
		want   []string // the beginning of each finding: severity, object, fault and remedy
	}{
		"all is well": {func(*State) {}, nil},
		"all is well, with the cluster's own kube-scheduler": {existing(t, long), nil},
		"nothing is installed": {func(s *State) { s.DaemonSets, s.Deployments = nil, nil }, []string{
			"error|cluster|no device plugin for gpumem.dev is installed", "error|cluster|no scheduler for gpumem.dev is installed",
		}},
		"another domain is": {func(s *State) {
			s.DaemonSets[0].Spec.Template.Spec.Containers[0].Args[0] = "--resource-domain=aliyun.com"
			s.Deployments[0].Spec.Template.Spec.InitContainers[0].Args[0] = "--resource-domain=aliyun.com"
		}, []string{"error|cluster|no device plugin for gpumem.dev", "error|cluster|no scheduler for gpumem.dev"}},
		"two plugins": {func(s *State) {
			second := *s.DaemonSets[0].DeepCopy()
			second.Name = "other-device-plugin"
			s.DaemonSets = append(s.DaemonSets, second)
		}, []string{"error|daemonset gpumem-system/other-device-plugin|is a second device plugin for gpumem.dev, next to gpumem-system/gpumem-device-plugin"}},
		"the extender is not ready": {func(s *State) {
			s.Deployments[0].Status.ReadyReplicas = 0
			for i := 1; i <= 2; i++ {
				s.Pods[i].Status = v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{waiting("gpumem-extender", "ImagePullBackOff", "no such image")}}
			}
		}, []string{"error|deployment gpumem-system/gpumem-scheduler|none of its pods is ready: no pod is placed on a GPU; scheduler-1 gpumem-extender waits: ImagePullBackOff: no such image; scheduler-2"}},
		"but only just": {func(s *State) {
			s.Deployments[0].Status.ReadyReplicas = 0
			s.Deployments[0].CreationTimestamp = metav1.NewTime(now().Add(-time.Second))
		}, []string{"note|cluster|not checked, because they are younger than 60s: deployment gpumem-system/gpumem-scheduler"}},
		"one replica is not": {func(s *State) {
			s.Deployments[0].Status.ReadyReplicas = 1
			s.Pods[1].Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Message: "no room"}}
		}, []string{"warning|deployment gpumem-system/gpumem-scheduler|1 of 2 pods are ready; scheduler-1 waits for a node: no room"}},
		"one replica is being replaced": {func(s *State) {
			s.Deployments[0].Status.ReadyReplicas = 1
			s.Pods[1].Status.Conditions, s.Pods[1].CreationTimestamp = nil, metav1.NewTime(now())
		}, []string{"warning|deployment gpumem-system/gpumem-scheduler|1 of 2 pods are ready|kubectl", "note|cluster|not checked, because they are younger than 60s: pod gpumem-system/scheduler-1"}},
		"scaled to nothing": {func(s *State) {
			s.Deployments[0].Spec.Replicas, s.Deployments[0].Status.ReadyReplicas = new(int32(0)), 0
		}, []string{"error|deployment gpumem-system/gpumem-scheduler|has no replicas: no pod is placed on a GPU|kubectl -n gpumem-system scale deployment gpumem-scheduler --replicas=2, and set scheduler.replicas to 2"}},
		"one replica alone": {func(s *State) {
			s.Deployments[0].Spec.Replicas, s.Deployments[0].Status.ReadyReplicas = new(int32(1)), 1
		}, []string{"warning|deployment gpumem-system/gpumem-scheduler|has one replica"}},
		"two lead": {func(s *State) { existing(t, long)(s); s.Deployments[0].Status.ReadyReplicas = 2 },
			[]string{"error|deployment gpumem-system/gpumem-extender|2 pods are ready, but only the leader may be"}},
		"no profile": {func(s *State) { s.ConfigMaps[0].Data["config.yaml"] = "profiles: []" },
			[]string{"error|deployment gpumem-system/gpumem-scheduler|its kube-scheduler has no profile"}},
		"no configuration": {func(s *State) { s.ConfigMaps = nil }, []string{"error|deployment gpumem-system/gpumem-scheduler|its kube-scheduler has no configuration"}},
		"kube-scheduler is newer": {func(s *State) { s.ServerVersion = "v1.35.1" },
			[]string{"error|deployment gpumem-system/gpumem-scheduler|its kube-scheduler is v1.36.3, newer than the API server, v1.35.1"}},
		"kube-scheduler is older": {func(s *State) { s.ServerVersion = "v1.37.0+k3s1" },
			[]string{"warning|deployment gpumem-system/gpumem-scheduler|its kube-scheduler is v1.36.3, older than the API server"}},
		"the gate for hints is off": {func(s *State) {
			s.Deployments[0].Spec.Template.Spec.Containers[0] = v1.Container{Name: "gpumem-scheduler", Args: []string{"--feature-gates=OpportunisticBatching=false"}}
		}, []string{"warning|deployment gpumem-system/gpumem-scheduler|its feature gate OpportunisticBatching is off: each pod takes several times the processor time|remove it from --feature-gates"}},
		"the gate for hints is off for an extender": {func(s *State) {
			s.Deployments[0].Spec.Template.Spec.Containers[0].Args = []string{"--feature-gates=OpportunisticBatching=false"}
		}, nil},
		"a labelled node without a plugin": {func(s *State) {
			s.Nodes[1].Labels = map[string]string{gpuPresent: "true"}
			s.Nodes[1].Spec.Taints = []v1.Taint{{Key: "dedicated", Value: "ml", Effect: v1.TaintEffectNoSchedule}}
		}, []string{"error|node cpu-1|has the label nvidia.com/gpu.present=true and runs no device plugin of gpumem (its taints: dedicated=ml:NoSchedule)"}},
		"a node of a fleet that keeps NVIDIA's plugin": {func(s *State) {
			s.Nodes[1].Labels = map[string]string{gpuPresent: "true"}
			s.Nodes[1].Status.Allocatable = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
			s.DaemonSets[0].Spec.Template.Spec.NodeSelector = map[string]string{"gpumem": "true"}
			s.Nodes[0].Labels = map[string]string{"gpumem": "true"}
		}, nil},
		"a node that offers nvidia.com/gpu and is selected": {func(s *State) {
			s.Nodes[1].Labels = map[string]string{gpuPresent: "true"}
			s.Nodes[1].Status.Allocatable = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
		}, []string{"error|node cpu-1|has the label nvidia.com/gpu.present=true and runs no device plugin of gpumem"}},
		"a node that an older GPU Operator has labelled": {func(s *State) {
			s.Nodes[1].Labels = map[string]string{gpuPresent: "true"}
			s.DaemonSets[0].Spec.Template.Spec.NodeSelector = map[string]string{api.GPUClients: "true"}
		}, []string{"error|node cpu-1|has no label nvidia.com/gpu.deploy.client, which devicePlugin.nodeSelector selects: it runs no device plugin of gpumem|update the GPU Operator to 26.7 or newer"}},
		"a node whose driver is replaced": {func(s *State) {
			s.Nodes[1].Labels = map[string]string{gpuPresent: "true", gpuDriver: "true", api.GPUClients: "paused-for-driver-upgrade"}
			s.DaemonSets[0].Spec.Template.Spec.NodeSelector = map[string]string{api.GPUClients: "true"}
		}, []string{"warning|node cpu-1|runs no device plugin of gpumem: the GPU Operator keeps users of the driver off the node (nvidia.com/gpu.deploy.client=paused-for-driver-upgrade)"}},
		"a driver that cannot be unloaded": {func(s *State) {
			s.Nodes[0].Labels = map[string]string{gpuPresent: "true", gpuDriver: "true", api.GPUClients: "true"}
		}, []string{"warning|daemonset gpumem-system/gpumem-device-plugin|does not select nodes by the label nvidia.com/gpu.deploy.client: the GPU Operator cannot unload the driver of node gpu-a for an upgrade"}},
		"a driver of the machine, which the Operator does not unload": {func(s *State) {
			s.Nodes[0].Labels = map[string]string{gpuPresent: "true", gpuDriver: "pre-installed", api.GPUClients: "true"}
		}, nil},
		"a plugin that is not ready": {func(s *State) {
			s.Pods[0].Status = v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "gpumem-device-plugin", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}}
		}, []string{"error|node gpu-a|its device plugin is not ready: gpumem-device-plugin runs and is not ready"}},
		"a node that is not ready": {func(s *State) {
			s.Nodes[0].Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status."}}
			s.Pods[0].Status = v1.PodStatus{Phase: v1.PodRunning}
			s.Pods[2].Status = v1.PodStatus{Phase: v1.PodRunning}
			s.Deployments[0].Status.ReadyReplicas = 1
		}, []string{
			"error|node gpu-a|is NotReady: NodeStatusUnknown: Kubelet stopped posting node status.|kubectl describe node gpu-a shows the reason; its GPUs take no new pods until it is Ready",
			"warning|deployment gpumem-system/gpumem-scheduler|1 of 2 pods are ready; scheduler-2 is on node gpu-a, which is NotReady",
		}},
		"all is well, with MPS": {func(s *State) { addMPS(s) }, nil},
		"an MPS daemon that fails": {func(s *State) {
			addMPS(s).Status = v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{crashing("gpumem-mps", ended("Error", 1, ""))}}
		}, []string{"error|node gpu-a|its MPS daemon is not ready: gpumem-mps waits: CrashLoopBackOff: back-off 5m0s restarting failed container; it has ended before: Error, exit code 1|" +
			"kubectl -n gpumem-system logs mps-a; until it works, the node has neither of the levels mps and kernel"}},
		"an MPS daemon that has just failed": {func(s *State) {
			addMPS(s).Status = v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "gpumem-mps", State: ended("Error", 1, "")}}}
		}, []string{"error|node gpu-a|its MPS daemon is not ready: gpumem-mps has ended: Error, exit code 1"}},
		"an MPS daemon that fails, and only just": {func(s *State) {
			pod := addMPS(s)
			pod.CreationTimestamp, pod.Status = metav1.NewTime(now()), v1.PodStatus{}
		}, []string{"note|cluster|not checked, because they are younger than 60s: pod gpumem-system/mps-a"}},
		"an MPS daemon that is not created": {func(s *State) {
			addMPS(s)
			s.DaemonSets[1].Status.CurrentNumberScheduled, s.Pods = 0, s.Pods[:len(s.Pods)-1]
		}, []string{"error|daemonset gpumem-system/gpumem-mps|none of its pods was created"}},
		"an MPS daemon of another release that fails": {func(s *State) {
			addMPS(s).Status = v1.PodStatus{Phase: v1.PodRunning}
			s.DaemonSets[1].Labels[instance] = "other"
		}, nil},
		"plugins that are not created": {func(s *State) {
			s.DaemonSets[0].Status.CurrentNumberScheduled = 0
			s.Pods = s.Pods[1:]
			s.Nodes[0].Labels = nil
		}, []string{"error|daemonset gpumem-system/gpumem-device-plugin|none of its pods was created"}},
		"a plugin for no node": {func(s *State) { s.DaemonSets[0].Status.DesiredNumberScheduled = 0 },
			[]string{"error|daemonset gpumem-system/gpumem-device-plugin|its nodeSelector, affinity and tolerations fit no node"}},
		"no node offers any": {func(s *State) { s.Nodes[0].Annotations, s.Pods = nil, slices.Delete(s.Pods, 3, 4) },
			[]string{"error|cluster|no node offers gpumem.dev/gpu-mem"}},
		"plugins run and find no GPU": {func(s *State) {
			setInventory(t, &s.Nodes[0], gpu.Inventory{UnitMiB: 1024})
			delete(s.Nodes[0].Status.Allocatable, s.Names.GPUMem())
		}, []string{
			"error|cluster|no node offers gpumem.dev/gpu-mem, and the device plugin runs on 1: it finds no GPU that it may offer",
		}},
		"just installed": {func(s *State) {
			s.Nodes[0].Annotations = nil
			delete(s.Nodes[0].Status.Allocatable, s.Names.GPUMem())
			s.DaemonSets[0].CreationTimestamp = metav1.NewTime(now())
		}, []string{"note|cluster|not checked, because they are younger than 60s: daemonset gpumem-system/gpumem-device-plugin"}},
		"a plugin that finds no GPU where one is": {func(s *State) {
			s.Nodes[1].Labels = map[string]string{gpuPresent: "true"}
			s.Pods = append(s.Pods, readyPod("device-plugin", "plugin-b", "cpu-1"))
		}, []string{"warning|node cpu-1|its device plugin runs and offers nothing"}},
		"a plugin that finds no GPU on a node that was chosen": {func(s *State) {
			s.DaemonSets[0].Spec.Template.Spec.NodeSelector = map[string]string{"gpu": "true"}
			s.Pods = append(s.Pods, readyPod("device-plugin", "plugin-b", "cpu-1"))
		}, []string{"warning|node cpu-1|its device plugin runs and offers nothing"}},
		"a plugin on a node without a GPU": {func(s *State) {
			s.DaemonSets[0].Spec.Template.Spec.NodeSelector = map[string]string{v1.LabelOSStable: "linux"}
			s.Pods = append(s.Pods, readyPod("device-plugin", "plugin-b", "cpu-1"))
		}, nil},
		"a GPU that is cordoned": {func(s *State) { s.Nodes[0].Annotations[s.Names.Cordoned()] = "GPU-00000001" },
			[]string{"warning|node gpu-a|GPU 1 (GPU-00000001) is cordoned: it takes no new pods"}},
		"a GPU that is cordoned, by whom": {func(s *State) {
			s.Nodes[0].Annotations[s.Names.Cordoned()] = "GPU-00000001"
			s.Nodes[0].Annotations[s.Names.CordonReasons()] = `{"GPU-00000000":{"by":"bob"},"GPU-00000001":{"by":"alice","reason":"its fan is loud"}}`
		}, []string{"warning|node gpu-a|GPU 1 (GPU-00000001) is cordoned by alice (its fan is loud): it takes no new pods"}},
		"a GPU that is cordoned, and by whom cannot be read": {func(s *State) {
			s.Nodes[0].Annotations[s.Names.Cordoned()] = "GPU-00000001"
			s.Nodes[0].Annotations[s.Names.CordonReasons()] = `alice`
		}, []string{"warning|node gpu-a|GPU 1 (GPU-00000001) is cordoned: it takes no new pods"}},
		"an inventory that cannot be read": {func(s *State) { s.Nodes[0].Annotations[s.Names.Inventory()] = `{"v":9}` },
			[]string{"error|node gpu-a|its inventory cannot be read: "}},
		"another unit": {func(s *State) {
			inv := inventory()
			inv.UnitMiB = 512
			setInventory(t, &s.Nodes[0], inv)
		}, []string{"error|node gpu-a|has units of 512 MiB, and the installation has unitMiB 1024: it takes no new pods"}},
		"shares": {func(s *State) {
			offerShares(t, s)
			s.Nodes[0].Labels[s.Names.API()] = api.InShares
		}, nil},
		"shares by claims": {func(s *State) {
			byClaims(t)(s)
			inv, err := s.Names.InventoryOf(&s.Nodes[0])
			if err != nil {
				t.Fatal(err)
			}
			inv.UnitMiB = 0
			for i := range inv.Devices {
				inv.Devices[i].Allocatable, inv.Devices[i].ShareMiB = gpu.SharesPerDevice, 1400
			}
			setInventory(t, &s.Nodes[0], inv)
		}, nil},
		"shares that are off": {func(s *State) {
			s.Nodes[0].Labels[s.Names.API()] = api.InShares
		}, []string{"warning|node gpu-a|has the label gpumem.dev/api=shares, which has no effect: shares are off"}},
		"shares that are to come": {func(s *State) {
			s.Nodes[0].Labels[s.Names.API()] = api.InShares
			args := &s.DaemonSets[0].Spec.Template.Spec.Containers[0].Args
			*args = append(*args, "--shares=true")
		}, []string{"warning|node gpu-a|offers gpumem.dev/gpu-mem, and its label gpumem.dev/api selects another resource: it takes no new pods until its present ones have ended"}},
		"shares without the label": {func(s *State) { offerShares(t, s) },
			[]string{"warning|node gpu-a|offers gpumem.dev/gpu-share, and its label gpumem.dev/api selects another resource"}},
		"a kubelet that has not heard of shares": {func(s *State) {
			offerShares(t, s)
			s.Nodes[0].Labels[s.Names.API()] = api.InShares
			delete(s.Nodes[0].Status.Allocatable, s.Names.GPUShares())
		}, []string{"warning|node gpu-a|its kubelet offers 0 of gpumem.dev/gpu-share, and its device plugin 20"}},
		"a GPU that is out": {func(s *State) {
			inv := inventory()
			inv.Devices[1].Status = gpu.Unhealthy("XID 79")
			setInventory(t, &s.Nodes[0], inv)
			s.Nodes[0].Status.Allocatable[s.Names.GPUMem()] = resource.MustParse("14")
		}, []string{"error|node gpu-a|GPU 1 (GPU-00000001) is unhealthy: XID 79"}},
		"a GPU that is out, and cordoned": {func(s *State) {
			inv := inventory()
			inv.Devices[1].Status = gpu.Unhealthy("XID 79")
			setInventory(t, &s.Nodes[0], inv)
			s.Nodes[0].Annotations[s.Names.Cordoned()] = string(inv.Devices[1].UUID)
			s.Nodes[0].Status.Allocatable[s.Names.GPUMem()] = resource.MustParse("14")
		}, []string{"error|node gpu-a|GPU 1 (GPU-00000001) is unhealthy: XID 79; cordoned|it returns after three good probes, or after a reset if it needs one (docs/runbooks.md, GPUMemoryGPUUnhealthy); nvidia-smi on the node shows the driver's report. kubectl inspect gpumem drain gpu-a 1 moves its pods, " +
			"which kube-scheduler counts against the node's other GPUs. It is also cordoned; to admit pods again, run kubectl inspect gpumem uncordon gpu-a 1"}},
		"a cordon of no GPU": {func(s *State) { s.Nodes[0].Annotations[s.Names.Cordoned()] = "0" },
			[]string{"note|node gpu-a|annotation gpumem.dev/cordoned-gpus names 0, but the node has no GPU with this UUID"}},
		"a kubelet that has not heard": {func(s *State) { delete(s.Nodes[0].Status.Allocatable, s.Names.GPUMem()) },
			[]string{"warning|node gpu-a|its kubelet offers 0 of gpumem.dev/gpu-mem, and its device plugin 28"}},
		"NVIDIA's plugin beside": {func(s *State) { s.Nodes[0].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("2") },
			[]string{"warning|node gpu-a|offers 2 nvidia.com/gpu as well as gpumem.dev/gpu-mem"}},
		"another driver as well": {func(s *State) {
			s.Slices = []resourceapi.ResourceSlice{publishes("gpu.nvidia.com", "gpu-a", "GPU-00000001"), publishes("gpu.nvidia.com", "gpu-b", "GPU-00000000")}
		}, []string{"warning|node gpu-a|driver gpu.nvidia.com publishes GPU 1 (GPU-00000001) as well: both allocate it"}},
		"both by claims and not": {func(s *State) {
			s.Slices = []resourceapi.ResourceSlice{publishes("gpumem.dev", "gpu-a", "GPU-00000001")}
		},
			[]string{"warning|node gpu-a|offers its GPUs by claims and as gpumem.dev/gpu-mem|this ends within a minute after a change of its label gpumem.dev/api"}},
		"claims alone": {byClaims(t), nil},
		"claims that no one can make": {func(s *State) { byClaims(t)(s); s.Slices = nil },
			[]string{"error|node gpu-a|offers GPUs by claims and publishes none of them: no claim gets any"}},
		"claims that no one may look at": {func(s *State) { byClaims(t)(s); s.Slices, s.Unread = nil, map[string]string{"resourceslices": "no"} },
			[]string{"note|cluster|not checked, because they could not be listed: resourceslices (no)"}},
		"claims of whole GPUs alone": {func(s *State) { byClaims(t)(s); s.Slices[0].Spec.Devices[0].AllowMultipleAllocations = nil },
			[]string{"error|node gpu-a|the API server stores its GPUs for one claim each: the feature gate DRAConsumableCapacity is off there"}},
		"claims on Kubernetes 1.35": {func(s *State) {
			byClaims(t)(s)
			s.ServerVersion = "v1.35.8-eks-1"
			s.Deployments[0].Spec.Template.Spec.Containers[0].Image = "k:v1.35.8"
		},
			[]string{"error|cluster|nodes offer GPUs by claims, and Kubernetes is v1.35.8-eks-1: no claim gets a part of a GPU|update Kubernetes to 1.36.3 or newer, or remove the label gpumem.dev/api"}},
		"claims on Kubernetes 1.36.2": {func(s *State) { byClaims(t)(s); s.ServerVersion = "v1.36.2" },
			[]string{"warning|cluster|nodes offer GPUs by claims, and Kubernetes is v1.36.2: pods may wait for GPUs that are free"}},
		"claims on Kubernetes 1.36.3 of a cloud": {func(s *State) { byClaims(t)(s); s.ServerVersion = "v1.36.3-gke.100" }, nil},
		"claims without what they need": {func(s *State) {
			byClaims(t)(s)
			s.ControlPlane = []v1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-scheduler-1"}, Spec: v1.PodSpec{Containers: []v1.Container{{
				Command: []string{"kube-scheduler", "--feature-gates=Other=true,DRAConsumableCapacity=false"},
			}}}}}
			s.Deployments[0].Spec.Template.Spec.Containers[0].Args = []string{"--feature-gates=AllBeta=false,DRAConsumableCapacity=true"}
		}, []string{
			"error|deployment gpumem-system/gpumem-scheduler|has the feature gate DRADeviceTaints off, but claims need it",
			"error|pod kube-system/kube-scheduler-1|has the feature gate DRAConsumableCapacity off, but claims need it|turn it on there: --feature-gates=DRAConsumableCapacity=true",
		}},
		"no claims, and not what they need": {func(s *State) {
			s.Deployments[0].Spec.Template.Spec.Containers[0].Args = []string{"--feature-gates=AllBeta=false"}
		}, nil},
		"weaker than asked": {func(s *State) {
			s.DaemonSets[0].Spec.Template.Spec.Containers[0].Args[2] = "--enforcement=kernel"
			inv := inventory()
			inv.Weaker = "the driver is too old"
			setInventory(t, &s.Nodes[0], inv)
		}, []string{"error|node gpu-a|enforces the level advisory, and devicePlugin.enforcement is kernel: the driver is too old"}},
		"no policy": {func(s *State) { s.Policies = nil }, []string{
			"warning|daemonset gpumem-system/gpumem-device-plugin|no admission policy restricts the plugin to its node",
			"warning|daemonset gpumem-system/gpumem-device-plugin|no admission policy protects gpumem's annotations",
		}},
		"no policy for annotations": {func(s *State) { s.Policies = s.Policies[:1] }, []string{
			"warning|daemonset gpumem-system/gpumem-device-plugin|no admission policy protects gpumem's annotations: the owner of a pod may change its GPUs and rules|set admission.holdAnnotations to true",
		}},
		"a policy that only warns": {func(s *State) {
			s.Bindings[0].Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Warn}
		},
			[]string{"warning|validatingadmissionpolicy gpumem-device-plugin|no binding has the action Deny"}},
		"a policy that is to warn, and does": {func(s *State) {
			s.Policies[0].Spec.FailurePolicy = new(admissionv1.Ignore)
			s.Bindings[0].Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Warn}
		}, nil},
		"a policy that is to warn, and is not bound": {func(s *State) {
			s.Policies[0].Spec.FailurePolicy, s.Bindings = new(admissionv1.Ignore), s.Bindings[1:]
		}, []string{"warning|validatingadmissionpolicy gpumem-device-plugin|no binding has the action Warn, so it warns of nothing"}},
		"a node whose plugin has left": {func(s *State) {
			inv := inventory()
			inv.Devices[1].Status.Stopped = true
			setInventory(t, &s.Nodes[0], inv)
			s.Nodes[0].Status.Allocatable[s.Names.GPUMem()] = resource.MustParse("14")
		}, []string{"warning|node gpu-a|GPU 1 (GPU-00000001) takes no new pods: its device plugin is stopped or being replaced"}},
		"a node whose plugin has left, with a GPU that is cordoned": {func(s *State) {
			inv := inventory()
			inv.Devices[1].Status.Stopped = true
			setInventory(t, &s.Nodes[0], inv)
			s.Nodes[0].Annotations[s.Names.Cordoned()] = string(inv.Devices[1].UUID)
			s.Nodes[0].Status.Allocatable[s.Names.GPUMem()] = resource.MustParse("14")
		}, []string{"warning|node gpu-a|GPU 1 (GPU-00000001) takes no new pods: its device plugin is stopped or being replaced; cordoned|it takes pods again once the device plugin runs there: " +
			"check the plugin's pod, or why the node has none. It is also cordoned; to admit pods again, run kubectl inspect gpumem uncordon gpu-a 1"}},
		"a pod of another scheduler": {func(s *State) { s.Pods[4].Spec.SchedulerName = "default-scheduler" },
			[]string{"error|pod ml/waits|1 pods with GPU memory are scheduled without asking gpumem, which knows the free memory of each GPU: 1 wait for a node, the kubelet rejected 0|set spec.schedulerName to gpumem-scheduler in"}},
		"pods of a name that the scheduler had": {func(s *State) { s.Pods[3].Spec.SchedulerName = "old-name" }, nil},
		"pods that run past it": {func(s *State) {
			for i := range 2 {
				pod := userPod(t, fmt.Sprint("bare-", i), "gpu-a")
				pod.Spec.SchedulerName = "default-scheduler"
				byNode(s, &pod)
				s.Pods = append(s.Pods, pod)
			}
		}, []string{"warning|pods ml/bare-0, ml/bare-1|2 pods with GPU memory are scheduled without asking gpumem"}},
		"pods of another scheduler that the kubelet rejected": {func(s *State) {
			for i, scheduler := range []string{"default-scheduler", "volcano", "gpumem-scheduler", "default-scheduler"} {
				pod := userPod(t, fmt.Sprint("dead-", i), "gpu-a")
				pod.Annotations, pod.Spec.SchedulerName = nil, scheduler
				pod.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "UnexpectedAdmissionError", Message: "Pod was rejected"}
				if i == 3 {
					pod.Status.Reason = "Evicted"
				}
				s.Pods = append(s.Pods, pod)
			}
		}, []string{"warning|pods ml/dead-0, ml/dead-1|2 pods with GPU memory are scheduled without asking gpumem, which knows the free memory of each GPU: 0 wait for a node, the kubelet rejected 2|" +
			"set spec.schedulerName to gpumem-scheduler in the template of these pods, leave spec.nodeName empty, and recreate the pods"}},
		"pods that the plugin placed": {func(s *State) {
			existing(t, long)(s)
			byNode(s, &s.Pods[3])
		}, []string{"warning|pod ml/runs|1 pods with GPU memory are scheduled without asking gpumem"}},
		"pods of a scheduler that nobody can know": {func(s *State) { existing(t, long)(s); s.Pods[3].Spec.SchedulerName = "their-own" }, nil},
		"a version apart": {func(s *State) { s.Deployments[0].Labels[version] = "0.2.0" }, []string{
			"warning|cluster|device plugin has version 0.1.0, and scheduler has 0.2.0", "warning|cluster|scheduler has version 0.2.0, and this command has v0.1.0",
		}},
		"another major version": {func(s *State) { s.ClientVersion = "v1.1.0" }, []string{
			"error|cluster|device plugin has version 0.1.0, and this command has v1.1.0", "error|cluster|scheduler has version 0.1.0, and this command has v1.1.0",
		}},
		"two versions apart": {func(s *State) { s.ClientVersion = "v0.3.1" }, []string{
			"error|cluster|device plugin has version 0.1.0, and this command has v0.3.1", "error|cluster|scheduler has version 0.1.0, and this command has v0.3.1",
		}},
		"a certificate that ends": {existing(t, soon), []string{
			"warning|secret gpumem-system/gpumem-extender-client|its certificate expires on 2026-11-11", "warning|secret gpumem-system/gpumem-extender-tls|its certificate expires on 2026-11-11",
		}},
		"a certificate that has ended": {existing(t, now().AddDate(0, 0, -1)), []string{
			"error|secret gpumem-system/gpumem-extender-client|its certificate expired on 2026-10-31", "error|secret gpumem-system/gpumem-extender-tls|its certificate expired",
		}},
		"a certificate that is gone": {func(s *State) { existing(t, long)(s); s.Secrets = nil },
			[]string{"error|secret gpumem-system/gpumem-extender-tls|does not exist, but calls from your kube-scheduler need its certificate"}},
		"Secrets that may not be read": {func(s *State) {
			existing(t, long)(s)
			s.Secrets, s.Unread = nil, map[string]string{"secrets": "forbidden"}
		}, []string{"note|cluster|not checked, because they could not be listed: secrets (forbidden)"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy(t)
			tc.change(s)
			found := slices.DeleteFunc(Examine(s), func(f Finding) bool { return f.Check == "features" }) // see TestFeaturesInUse
			if len(found) != len(tc.want) {
				t.Fatalf("%d findings, want %d: %+v", len(found), len(tc.want), found)
			}
			for i, f := range found {
				if f.Fix == "" {
					t.Errorf("nothing to do about %+v", f)
				}
				if got := fmt.Sprintf("%s|%s|%s|%s", f.Severity, f.Object, f.Wrong, f.Fix); !strings.HasPrefix(got, tc.want[i]) {
					t.Errorf("finding %d:\n%s\nwant it to begin with\n%s", i, got, tc.want[i])
				}
			}
		})
	}
}

// After an increase of the reserve, a GPU offers less memory than its pods have.
func TestAGPUIsOverCommitted(t *testing.T) {
	for _, cordoned := range []bool{false, true} {
		testOverCommitted(t, cordoned)
	}
}

func testOverCommitted(t *testing.T, cordoned bool) {
	t.Helper()
	s := healthy(t)
	inv := inventory()
	inv.Devices[0].Allocatable = 1
	setInventory(t, &s.Nodes[0], inv)
	s.Nodes[0].Status.Allocatable[s.Names.GPUMem()] = resource.MustParse("15")
	var want []Finding
	if cordoned {
		s.Nodes[0].Annotations[s.Names.Cordoned()] = "GPU-00000000"
		want = append(want, Finding{"gpus", Warning, "node gpu-a", "GPU 0 (GPU-00000000) is cordoned: it takes no new pods",
			"kubectl inspect gpumem uncordon gpu-a 0, once it is to take pods again"})
	}
	want = append(want, Finding{"gpus", Warning, "node gpu-a", "GPU 0 (GPU-00000000) is over-committed: it offers 1 GiB, less than before, and its pods have 2 GiB",
		"kubectl inspect gpumem drain NODE GPU moves pods off a GPU; kube-scheduler counts those that stay against the node's other GPUs"})
	if diff := cmp.Diff(want, Examine(s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The check counts the kubelet's allocation of a pod, as the scheduler's cache does.
func TestAGPUIsOverCommittedByTheKubelet(t *testing.T) {
	for name, change := range map[string]func(*State, *gpu.Inventory){
		"the kubelet has given more": func(_ *State, inv *gpu.Inventory) {
			inv.Allocated = []gpu.PodAllocation{{UID: "runs", Shares: []gpu.Share{{Device: inv.Devices[0].UUID, Units: inv.Devices[0].Allocatable + 1}}}}
		},
	} {
		s := healthy(t)
		for i := range s.Pods {
			if s.Pods[i].Name == "runs" {
				s.Pods[i].UID = "runs"
			}
		}
		inv := inventory()
		change(s, &inv)
		setInventory(t, &s.Nodes[0], inv)
		if !slices.ContainsFunc(Examine(s), func(f Finding) bool { return strings.Contains(f.Wrong, "GPU 0 (GPU-00000000) is over-committed") }) {
			t.Errorf("%s: %+v, want that the GPU is over-committed", name, Examine(s))
		}
	}
}

// The check counts a pod that moves to another GPU only on the other GPU.
func TestAPodThatLeavesAGPUDoesNotFillIt(t *testing.T) {
	s := healthy(t)
	inv := inventory()
	inv.Devices[0].Allocatable = 1
	setInventory(t, &s.Nodes[0], inv)
	value, err := names(t).AssignmentAnnotations(placement.Assignment{
		Shares: []placement.Share{{Device: inv.Devices[1].UUID, Units: 2}}, Leaving: []gpu.UUID{inv.Devices[0].UUID},
	}, placement.NewNode("gpu-a", inv, nil))
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Pods {
		if s.Pods[i].Name == "runs" {
			s.Pods[i].Annotations = value
		}
	}
	for _, f := range Examine(s) {
		if strings.Contains(f.Wrong, "over-committed") {
			t.Errorf("%+v", f)
		}
	}
}

// If no node offers GPU memory, the finding names the device plugin's log on a node that may have a GPU.
// Without such a node it names the DaemonSet, for which kubectl prints the log of any pod.
func TestWhoseLogSaysWhyNothingIsOffered(t *testing.T) {
	for want, labels := range map[string]map[string]string{
		"logs plugin-b shows the reason":                       {gpuPresent: "true"},
		"logs daemonset/gpumem-device-plugin shows the reason": nil,
	} {
		s := healthy(t)
		setInventory(t, &s.Nodes[0], gpu.Inventory{UnitMiB: 1024})
		s.Nodes[0].Labels, s.Nodes[1].Labels = nil, labels
		s.Pods = append(s.Pods, readyPod("device-plugin", "plugin-b", "cpu-1"))
		i := slices.IndexFunc(Examine(s), func(f Finding) bool { return f.Object == "cluster" && strings.Contains(f.Fix, want) })
		if i < 0 {
			t.Errorf("want %q in %+v", want, Examine(s))
		}
	}
}

// The notes list workloads that are too young for the checks, and no others.
func TestYoung(t *testing.T) {
	s := healthy(t)
	if got, left := s.YoungWorkloads(); len(got) > 0 || left > 0 {
		t.Errorf("%q are young, for %v, in a cluster that has settled", got, left)
	}
	s.DaemonSets[0].CreationTimestamp = metav1.NewTime(s.Now.Add(-MinAge / 2))
	s.Pods[0].CreationTimestamp, s.Pods[3].CreationTimestamp = metav1.NewTime(s.Now.Add(-MinAge/4)), metav1.NewTime(s.Now)
	s.Nodes[0].CreationTimestamp = metav1.NewTime(s.Now)
	got, left := s.YoungWorkloads()
	if diff := cmp.Diff([]string{"daemonset gpumem-system/gpumem-device-plugin", "pod gpumem-system/plugin-a"}, got); diff != "" || left != 3*MinAge/4 {
		t.Errorf("for %v (-want +got):\n%s", left, diff)
	}
}

// An unreadable kind of object causes no false finding.
func TestUnreadIsNotEmpty(t *testing.T) {
	kinds := map[string]func(*State){
		"nodes":                             func(s *State) { s.Nodes = nil },
		"pods":                              func(s *State) { s.Pods = nil },
		"daemonsets":                        func(s *State) { s.DaemonSets = nil },
		"deployments":                       func(s *State) { s.Deployments = nil },
		"configmaps":                        func(s *State) { s.ConfigMaps = nil },
		"validatingadmissionpolicies":       func(s *State) { s.Policies = nil },
		"validatingadmissionpolicybindings": func(s *State) { s.Bindings = nil },
	}
	for kind, lose := range kinds {
		s := healthy(t)
		lose(s)
		s.Unread = map[string]string{kind: "forbidden"}
		if kind == "configmaps" {
			kind += " with the names of gpumem's schedulers"
		}
		want := []Finding{{Severity: Note, Object: "cluster", Wrong: "not checked, because they could not be listed: " + kind + " (forbidden)"}}
		got := slices.Clone(Examine(s))
		for i := range got {
			got[i].Fix = ""
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("without %s (-want +got):\n%s", kind, diff)
		}
	}
}

// If the user may not read the names of gpumem's schedulers, doctor reports the pods that no scheduler has
// considered, and the pods of the default scheduler if the release runs its own kube-scheduler.
func TestWrongSchedulersWithoutConfigMaps(t *testing.T) {
	const fix = "set spec.schedulerName to the name of gpumem's scheduler (gpumem-scheduler by default) in the template of these pods, leave spec.nodeName empty, and recreate the pods"
	considered := []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse}}
	for name, tc := range map[string]struct {
		scheduler  string
		conditions []v1.PodCondition
		change     func(*State)
		want       bool
	}{
		"no scheduler has considered it":     {"gpumem-schedular", nil, nil, true},
		"some scheduler has considered it":   {"mine", considered, nil, false},
		"gpumem's default":                   {"gpumem-scheduler", nil, nil, false},
		"the default scheduler":              {v1.DefaultSchedulerName, considered, nil, true},
		"the default scheduler asks gpumem":  {v1.DefaultSchedulerName, considered, func(s *State) { s.Deployments[0].Labels[component] = "extender" }, false},
		"the workloads cannot be read":       {v1.DefaultSchedulerName, considered, func(s *State) { s.Deployments, s.Unread["deployments"] = nil, "forbidden" }, false},
		"the pod is younger than the checks": {"gpumem-schedular", nil, func(s *State) { s.Pods[4].CreationTimestamp = metav1.NewTime(s.Now) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy(t)
			s.ConfigMaps, s.Unread = nil, map[string]string{"configmaps": "forbidden"}
			pod := &s.Pods[4]
			pod.Spec.SchedulerName, pod.Status.Conditions = tc.scheduler, tc.conditions
			if tc.change != nil {
				tc.change(s)
			}
			var want findings
			if tc.want {
				want.add(Error, "pod "+namespacedName(pod.ObjectMeta), fix, "1 pods with GPU memory are scheduled without asking gpumem, which knows the free memory of each GPU: 1 wait for a node, the kubelet rejected 0")
			}
			if diff := cmp.Diff(want, checkPods(s, findInstallation(s))); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

// byNode marks a pod as placed by the device plugin.
func byNode(s *State, pod *v1.Pod) {
	key := s.Names.Assignment()
	pod.Annotations[key] = strings.Replace(pod.Annotations[key], "{", `{"byNode":true,`, 1)
}

func TestClientsOfMPSProtocol3AreToBeDeleted(t *testing.T) {
	s := healthy(t)
	pod := &s.Pods[slices.IndexFunc(s.Pods, func(p v1.Pod) bool { return s.Names.Asks(&p) && p.Spec.NodeName != "" })]
	node := s.node(pod.Spec.NodeName)
	inventory, assignment := s.Names.Inventory(), s.Names.Assignment()
	node.Annotations[inventory] = strings.Replace(node.Annotations[inventory], "{", `{"mps":3,`, 1)
	pod.Annotations[assignment] = strings.Replace(pod.Annotations[assignment], `"enforcement":"advisory"`, `"enforcement":"mps"`, 1)
	want := []Finding{{
		Severity: Error, Object: "pod " + namespacedName(pod.ObjectMeta), Wrong: "is a client of MPS protocol 3, which gpumem no longer runs: the chart refuses the upgrade, and the pod cannot start again after it",
		Fix: "delete the pod and the MPS daemon of node " + node.Name + " before the upgrade (docs/upgrading.md#upgrade-from-02)",
	}}
	if diff := cmp.Diff(findings(want), checkPods(s, findInstallation(s))); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestPodsThatGPUSharePlacedAreToBeDrained(t *testing.T) {
	n, err := api.NewNames("aliyun.com")
	if err != nil {
		t.Fatal(err)
	}
	pod := readyPod("", "old", "gpu-a")
	pod.Namespace, pod.Labels, pod.Annotations = "ml", nil, map[string]string{"ALIYUN_COM_GPU_MEM_IDX": "0"}
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{n.GPUMem(): resource.MustParse("3")}}}}
	want := []Finding{{
		Severity: Error, Object: "pod ml/old", Wrong: "was placed by gpushare: gpumem offers no GPU of node gpu-a while it runs",
		Fix: "kubectl drain gpu-a --ignore-daemonsets --delete-emptydir-data (docs/migrating-from-gpushare.md)",
	}}
	if diff := cmp.Diff(findings(want), checkPods(&State{Names: n, Now: now(), Pods: []v1.Pod{pod}}, installation{})); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}
