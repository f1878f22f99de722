package policies

import (
	"cmp"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// The token of a node's plugin writes what the plugin writes, and nothing else on its node.
func TestTheDevicePluginWritesItsOwn(t *testing.T) {
	const (
		others = "may change its own annotations and no others"
		more   = "may change annotations, conditions and its own labels and nothing else"
		status = "may change its own condition of its node's status and nothing else"
	)
	account := &user.DefaultInfo{
		Name:  "system:serviceaccount:gpumem-system:gpumem-device-plugin",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"node1"}},
	}
	elsewhere := &user.DefaultInfo{
		Name:  account.Name,
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"node2"}},
	}
	ready := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue}
	healthy := v1.NodeCondition{Type: "GPUMemoryHealthy", Status: v1.ConditionTrue}
	node := func(change func(*v1.Node)) *v1.Node {
		n := &v1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{"gpumem.dev/cordoned-gpus": "GPU-1", "example.com/owner": "me"}},
			Status: v1.NodeStatus{
				Capacity: v1.ResourceList{"cpu": resource.MustParse("4")}, Conditions: []v1.NodeCondition{ready, healthy},
				DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: 10250}},
				Images:          []v1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1}},
			},
		}
		change(n)
		return n
	}
	pod := func(change func(*v1.Pod)) *v1.Pod {
		p := &v1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"gpumem.dev/policy": "binpack"}},
			Spec:       v1.PodSpec{NodeName: "node1", Containers: []v1.Container{{Name: "main"}}},
		}
		change(p)
		return p
	}
	const startup = "startup-taint.cluster-autoscaler.kubernetes.io/gpumem"
	other := v1.Taint{Key: "team", Effect: v1.TaintEffectNoSchedule}
	tainted := func(taints ...v1.Taint) func(*v1.Node) {
		return func(n *v1.Node) { n.Spec.Taints = taints }
	}
	label := func(p *v1.Pod, keys ...string) {
		for _, key := range keys {
			p.Labels[key] = "new"
		}
	}
	annotate := func(o metav1.Object, keys ...string) {
		for _, key := range keys {
			o.GetAnnotations()[key] = "new"
		}
	}
	nodes := func(subresource string, change func(*v1.Node)) request {
		return request{"nodes", subresource, node(func(*v1.Node) {}), node(change), account}
	}
	pods := func(change func(*v1.Pod)) request {
		return request{"pods", "", pod(func(*v1.Pod) {}), pod(change), account}
	}
	for name, tc := range map[string]struct {
		request
		values string // default: default
		want   string
	}{
		"the inventory of another node": {
			request: request{"nodes", "", node(func(*v1.Node) {}), node(func(n *v1.Node) { annotate(n, "gpumem.dev/inventory") }), elsewhere},
			want:    "gpumem's device plugin of node node2 may not change nodes of node node1",
		},
		"a pod of another node": {
			request: request{"pods", "", pod(func(*v1.Pod) {}), pod(func(p *v1.Pod) { annotate(p, "gpumem.dev/assignment") }), elsewhere},
			want:    "gpumem's device plugin of node node2 may not change pods of node node1",
		},
		"the inventory, by a token that names no node": {
			request: request{"nodes", "", node(func(*v1.Node) {}), node(func(n *v1.Node) { annotate(n, "gpumem.dev/inventory") }), &user.DefaultInfo{Name: account.Name}},
			want:    "gpumem's device plugin of node (none: its token names no node) may not change nodes of node node1",
		},
		"the inventory": {request: nodes("", func(n *v1.Node) { annotate(n, "gpumem.dev/inventory") })},
		"which GPUs people have cordoned": {
			request: nodes("", func(n *v1.Node) { annotate(n, "gpumem.dev/cordoned-gpus") }), want: others,
		},
		"and no GPU any more": {
			request: nodes("", func(n *v1.Node) { delete(n.Annotations, "gpumem.dev/cordoned-gpus") }), want: others,
		},
		"the same by its status": {
			request: nodes("status", func(n *v1.Node) { annotate(n, "gpumem.dev/cordoned-gpus") }), want: others,
		},
		"what is a pod's, on its node": {request: nodes("", func(n *v1.Node) { annotate(n, "gpumem.dev/assignment") }), want: others},
		"another's annotation":         {request: nodes("", func(n *v1.Node) { annotate(n, "example.com/owner") }), want: others},
		"its condition, for the first time": {
			request: request{"nodes", "status", node(func(n *v1.Node) { n.Status.Conditions = []v1.NodeCondition{ready} }), node(func(*v1.Node) {}), account},
		},
		"its condition, changed": {request: nodes("status", func(n *v1.Node) { n.Status.Conditions[1].Status = v1.ConditionFalse })},
		"whether its node is ready": {
			request: nodes("status", func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionFalse }), want: status,
		},
		"another condition": {
			request: nodes("status", func(n *v1.Node) {
				n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: "Mine", Status: v1.ConditionTrue})
			}), want: status,
		},
		"one condition less": {request: nodes("status", func(n *v1.Node) { n.Status.Conditions = n.Status.Conditions[1:] }), want: status},
		"the kubelet's port": {
			request: nodes("status", func(n *v1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 31337 }), want: status,
		},
		"its capacity":    {request: nodes("status", func(n *v1.Node) { n.Status.Capacity["cpu"] = resource.MustParse("8") }), want: status},
		"its allocatable": {request: nodes("status", func(n *v1.Node) { n.Status.Allocatable = n.Status.Capacity }), want: status},
		"its addresses": {
			request: nodes("status", func(n *v1.Node) {
				n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"}}
			}), want: status,
		},
		"which system it is": {request: nodes("status", func(n *v1.Node) { n.Status.NodeInfo.KubeletVersion = "v9" }), want: status},
		"its images":         {request: nodes("status", func(n *v1.Node) { n.Status.Images = nil }), want: status},
		"its volumes":        {request: nodes("status", func(n *v1.Node) { n.Status.VolumesInUse = []v1.UniqueVolumeName{"v"} }), want: status},
		"volumes that are attached": {
			request: nodes("status", func(n *v1.Node) { n.Status.VolumesAttached = []v1.AttachedVolume{{Name: "v"}} }), want: status,
		},
		"its runtime's handlers": {
			request: nodes("status", func(n *v1.Node) { n.Status.RuntimeHandlers = []v1.NodeRuntimeHandler{{Name: "kata"}} }), want: status,
		},
		"its features":               {request: nodes("status", func(n *v1.Node) { n.Status.DeclaredFeatures = []string{"Any"} }), want: status},
		"the startup taint, removed": {request: request{"nodes", "", node(tainted(v1.Taint{Key: startup}, other)), node(tainted(other)), account}},
		"the startup taint, added":   {request: request{"nodes", "", node(tainted(other)), node(tainted(v1.Taint{Key: startup}, other)), account}, want: more},
		"another taint, removed":     {request: request{"nodes", "", node(tainted(v1.Taint{Key: startup}, other)), node(tainted(v1.Taint{Key: startup})), account}, want: more},
		"all taints, removed":        {request: request{"nodes", "", node(tainted(v1.Taint{Key: startup}, other)), node(tainted()), account}, want: more},
		"the startup taint, removed by uncordoning": {
			request: request{"nodes", "", node(func(n *v1.Node) { n.Spec.Unschedulable = true; tainted(v1.Taint{Key: startup})(n) }), node(tainted()), account}, want: more,
		},
		"a label":          {request: nodes("", func(n *v1.Node) { n.Labels = map[string]string{"a": "b"} }), want: more},
		"a label of a pod": {request: pods(func(p *v1.Pod) { label(p, "gpumem.dev/assigned-model") }), want: more},
		"its labels of a pod": {values: "units256", request: pods(func(p *v1.Pod) {
			label(p, "gpumem.dev/assigned-model", "gpumem.dev/assigned-percent", "gpumem.dev/assigned-speed")
		})},
		"its labels, taken away":         {values: "units256", request: request{"pods", "", pod(func(p *v1.Pod) { label(p, "gpumem.dev/assigned-model") }), pod(func(*v1.Pod) {}), account}},
		"the labels of a Service's pods": {values: "units256", request: pods(func(p *v1.Pod) { p.Labels["app"] = "other" }), want: more},
		"and without them":               {values: "units256", request: pods(func(p *v1.Pod) { delete(p.Labels, "app") }), want: more},
		"a pod's label on its node":      {values: "units256", request: nodes("", func(n *v1.Node) { n.Labels = map[string]string{"gpumem.dev/assigned-model": "b"} }), want: more},
		"the assignment of a pod": {request: pods(func(p *v1.Pod) {
			annotate(p, "gpumem.dev/assignment", "gpumem.dev/gpu-index")
		})},
		"what the pod asks for": {request: pods(func(p *v1.Pod) { annotate(p, "gpumem.dev/policy") }), want: others},
		"and takes it away":     {request: pods(func(p *v1.Pod) { delete(p.Annotations, "gpumem.dev/policy") }), want: others},
		"under another domain": {values: "aliyun", request: pods(func(p *v1.Pod) {
			annotate(p, "aliyun.com/assignment", "aliyun.com/gpu-index")
		})},
		"gpushare's annotation": {
			values: "aliyun", request: pods(func(p *v1.Pod) { annotate(p, "ALIYUN_COM_GPU_MEM_IDX") }), want: others,
		},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, policy(t, cmp.Or(tc.values, "default"), "gpumem-device-plugin"), tc.request, tc.want)
		})
	}
}
