package policies

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"
	"k8s.io/apiserver/pkg/authentication/user"
)

// deployed is a policy of the chart that denies requests.
type deployed struct {
	spec     admissionv1.ValidatingAdmissionPolicySpec
	compiled validating.Validator
}

// allPolicies returns the policies that the chart makes with a file of ci/ and binds to deny requests.
func allPolicies(t *testing.T, values string) (out []deployed) {
	t.Helper()
	denies := make(map[string]bool)
	for _, b := range readAll[admissionv1.ValidatingAdmissionPolicyBinding](t, values, "ValidatingAdmissionPolicyBinding", "") {
		if slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) {
			denies[b.Spec.PolicyName] = true
		}
	}
	for _, p := range readAll[admissionv1.ValidatingAdmissionPolicy](t, values, "ValidatingAdmissionPolicy", "") {
		if denies[p.Name] {
			out = append(out, deployed{p.Spec, compile(t, &p)})
		}
	}
	return out
}

// refusals returns the messages of all policies that match a request and deny it.
func refusals(t *testing.T, policies []deployed, r request) string {
	t.Helper()
	var out []string
	for _, p := range policies {
		matches := func(rule admissionv1.NamedRuleWithOperations) bool {
			matcher := rules.Matcher{Rule: rule.RuleWithOperations, Attr: r.versioned(t).Attributes}
			return matcher.Matches()
		}
		if slices.ContainsFunc(p.spec.MatchConstraints.ResourceRules, matches) {
			if message := refusal(t, p.compiled, r); message != "" {
				out = append(out, message)
			}
		}
	}
	return strings.Join(out, "; ")
}

// An edit changes a pod or a node.
type edit func(metav1.Object)

func annotate(key, value string) edit {
	return func(o metav1.Object) { o.GetAnnotations()[key] = value }
}

func removeAnnotation(key string) edit {
	return func(o metav1.Object) { delete(o.GetAnnotations(), key) }
}

func label(key string) edit { return func(o metav1.Object) { o.GetLabels()[key] = "x" } }

func editPod(change func(*v1.Pod)) edit { return func(o metav1.Object) { change(o.(*v1.Pod)) } }

func editNode(change func(*v1.Node)) edit { return func(o metav1.Object) { change(o.(*v1.Node)) } }

func setEnv(name string) edit {
	return editPod(func(p *v1.Pod) { p.Spec.Containers[0].Env = []v1.EnvVar{{Name: name, Value: "all"}} })
}

func debugWith(name string) edit {
	return editPod(func(p *v1.Pod) {
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debugger", Env: []v1.EnvVar{{Name: name, Value: "all"}}}}}
	})
}

func setReady(status v1.ConditionStatus, kind v1.NodeConditionType) edit {
	return editNode(func(n *v1.Node) { n.Status.Conditions = []v1.NodeCondition{{Type: kind, Status: status}} })
}

// An attack is a write that an admission policy refuses. The harmless write to the same object, by the
// same account and the same way, passes.
type attack struct {
	name              string
	who               user.Info
	way               string // "create", or the subresource of the update
	object            runtime.Object
	harmless, harmful edit
	want              string
}

const (
	atCreation  = "is written by gpumem when it places the pod"
	whileWaits  = "is written by gpumem alone"
	whilePlaced = "of a pod that has a node does not change any more"
	elsewhere   = "of node node1 may not change"
	onlyOwn     = "may change its own annotations and no others"
	onlyMeta    = "may change annotations, conditions and its own labels and nothing else"
	onlyOwnPart = "may change its own condition of its node's status and nothing else"
	tooMany     = "32 of them and 1024 bytes at most"

	gpumemAssignment = "gpumem.dev/assignment"
	forged           = `{"v":1,"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":"GPU-2","index":1,"units":2}]}`
)

// attacks returns every attack that admission decides. test/e2e has the others: TestAttacks.
func attacks() (out []attack) {
	tenant := &user.DefaultInfo{Name: "system:serviceaccount:team:dev"}
	controller := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:replicaset-controller"}
	plugin := &user.DefaultInfo{Name: "system:serviceaccount:gpumem-system:gpumem-device-plugin", Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"node1"}}}
	unbound := &user.DefaultInfo{Name: plugin.Name}
	pod := func(node string, gates ...v1.PodSchedulingGate) *v1.Pod {
		p := &v1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Labels: map[string]string{"app": "a"}, Annotations: map[string]string{}},
			Spec: v1.PodSpec{NodeName: node, SchedulerName: "gpumem-scheduler", SchedulingGates: gates, Containers: []v1.Container{{
				Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("2")}},
			}}},
		}
		if node != "" {
			p.Annotations[gpumemAssignment] = strings.ReplaceAll(forged, "GPU-2", "GPU-1")
		}
		return p
	}
	node := func(name string) *v1.Node {
		return &v1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
			Status:     v1.NodeStatus{Capacity: v1.ResourceList{"cpu": resource.MustParse("4")}, Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
		}
	}
	gate := v1.PodSchedulingGate{Name: "example.com/gate"}
	running, waiting, gated, bypassing := pod("node1"), pod(""), pod("", gate), pod("node1")
	delete(bypassing.Annotations, gpumemAssignment)
	add := func(who user.Info, way string, object runtime.Object, harmless edit, rows ...attack) {
		for _, a := range rows {
			a.who, a.way, a.object, a.harmless = who, way, object, harmless
			out = append(out, a)
		}
	}
	assign := annotate(gpumemAssignment, forged)
	control := annotate("example.com/control", "x")
	add(tenant, "", running, control, []attack{
		{name: "count for half, by gpu-count of a running pod", harmful: annotate("gpumem.dev/gpu-count", "2"), want: whilePlaced},
		{name: "count for half, by the assignment of a running pod", harmful: annotate(gpumemAssignment, strings.Replace(forged, "}]", `},{"uuid":"GPU-1","index":0,"units":1}]`, 1)), want: whilePlaced},
		{name: "count on another's GPU, by the assignment of a running pod", harmful: assign, want: whilePlaced},
		{name: "count on another's GPU as well, by a forged leaving", harmful: annotate(gpumemAssignment, strings.TrimSuffix(forged, "}")+`,"leaving":["GPU-2"]}`), want: whilePlaced},
		{name: "count nowhere, by an assignment that is empty", harmful: annotate(gpumemAssignment, ""), want: whilePlaced},
		{name: "remove the annotations of a running pod", harmful: removeAnnotation(gpumemAssignment), want: whilePlaced},
		{name: "close a GPU, by the policy exclusive of a running pod", harmful: annotate("gpumem.dev/policy", "exclusive"), want: whilePlaced},
		{name: "close a GPU, by a policy that cannot be read", harmful: annotate("gpumem.dev/policy", ""), want: whilePlaced},
		{name: "keep others away, by an exclusive-group of a running pod", harmful: annotate("gpumem.dev/exclusive-group", "prod"), want: whilePlaced},
		{name: "request other GPUs once placed", harmful: annotate("gpumem.dev/gpu-uuid", "GPU-none"), want: whilePlaced},
		{name: "write a label of the domain on a running pod", harmful: label(gpumemAssignment), want: whilePlaced},
	}...)
	add(tenant, "status", running, control, []attack{
		{name: "write the assignment of a running pod by its status, with a right to that in the namespace", harmful: assign, want: whilePlaced},
		{name: "write gpu-count of a running pod by its status, with a right to that in the namespace", harmful: annotate("gpumem.dev/gpu-count", "2"), want: whilePlaced},
	}...)
	add(tenant, "", waiting, control, []attack{
		{name: "choose a GPU, by the assignment of a waiting pod", harmful: assign, want: whileWaits},
		{name: "requeue at will, by room-made of a waiting pod", harmful: annotate("gpumem.dev/room-made", "now"), want: whileWaits},
	}...)
	add(tenant, "status", waiting, control, attack{name: "choose a GPU, by the assignment of a waiting pod, through its status", harmful: assign, want: whileWaits})
	add(tenant, "", gated, control, []attack{
		{name: "choose a GPU, by the assignment of a gated pod", harmful: assign, want: whileWaits},
		{name: "choose a GPU, by the index of a gated pod", harmful: annotate("gpumem.dev/gpu-index", "0"), want: whileWaits},
	}...)
	add(tenant, "create", waiting, control, []attack{
		{name: "create a pod with an assignment", harmful: assign, want: atCreation},
		{name: "create a pod with an index", harmful: annotate("gpumem.dev/gpu-index", "0"), want: atCreation},
	}...)
	add(tenant, "create", gated, control, []attack{
		{name: "create a gated pod with an assignment", harmful: assign, want: atCreation},
		{name: "reserve a GPU for a pod of one's own, by annotations at its creation", harmful: annotate("gpumem.dev/room-made", `{"v":1,"node":"node1","gpus":["GPU-1"]}`), want: atCreation},
	}...)
	add(tenant, "create", bypassing, control, attack{name: "create a pod with a nodeName and an assignment", harmful: assign, want: atCreation})
	add(controller, "create", waiting, control, attack{name: "create pods with an assignment by a Deployment", harmful: assign, want: atCreation})

	harmless := setEnv("MINE")
	add(tenant, "create", waiting, harmless, []attack{
		{name: "see all GPUs, by NVIDIA_VISIBLE_DEVICES", harmful: setEnv("NVIDIA_VISIBLE_DEVICES"), want: "sets NVIDIA_VISIBLE_DEVICES"},
		{name: "use more than allocated, by the MPS limit", harmful: setEnv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), want: "sets CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"},
		{name: "use more than allocated, by the kernel's limit", harmful: setEnv("NVIDIA_GPU_MEMORY_LIMIT"), want: "sets NVIDIA_GPU_MEMORY_LIMIT"},
		{name: "see all GPUs, as privileged", harmful: editPod(func(p *v1.Pod) {
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: new(true)}
		}), want: "is privileged"},
	}...)
	add(tenant, "ephemeralcontainers", running, debugWith("MINE"),
		attack{name: "see all GPUs, by an ephemeral container", harmful: debugWith("NVIDIA_VISIBLE_DEVICES"), want: "sets NVIDIA_VISIBLE_DEVICES"})
	globs := strings.Repeat("!z*,", 31) + "!z"
	add(tenant, "create", waiting, annotate("gpumem.dev/gpu-uuid", globs),
		attack{name: "make the scheduler match many globs", harmful: annotate("gpumem.dev/gpu-uuid", globs+",z"), want: tooMany})
	add(tenant, "create", waiting, annotate("gpumem.dev/gpu-uuid", strings.Repeat("x", 1024)),
		attack{name: "make the scheduler match long globs", harmful: annotate("gpumem.dev/gpu-uuid", strings.Repeat("x", 1025)), want: tooMany})

	add(plugin, "", node("node1"), annotate("gpumem.dev/inventory", "{}"), []attack{
		{name: "with a plugin's token, undo a cordon of its own node", harmful: annotate("gpumem.dev/cordoned-gpus", "GPU-1"), want: onlyOwn},
		{name: "with it, label its own node", harmful: label("node-role.kubernetes.io/control-plane"), want: onlyMeta},
		{name: "with it, taint its own node", harmful: editNode(func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "me", Effect: v1.TaintEffectNoSchedule}} }), want: onlyMeta},
	}...)
	add(plugin, "status", node("node1"), editNode(func(n *v1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: "GPUMemoryHealthy", Status: v1.ConditionFalse})
	}), []attack{
		{name: "with it, report its own node as unready", harmful: setReady(v1.ConditionFalse, v1.NodeReady), want: onlyOwnPart},
		{name: "with it, change the capacity of its own node", harmful: editNode(func(n *v1.Node) { n.Status.Capacity = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")} }), want: onlyOwnPart},
		{name: "with it, change the kubelet's port", harmful: editNode(func(n *v1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 31337 }), want: onlyOwnPart},
	}...)
	var none edit // the account may write nothing there
	add(plugin, "", node("node2"), none, attack{name: "with it, write the inventory of another node", harmful: annotate("gpumem.dev/inventory", "{}"), want: elsewhere})
	add(plugin, "status", node("node2"), none, attack{name: "with it, write its condition on another node", harmful: setReady(v1.ConditionFalse, "GPUMemoryHealthy"), want: elsewhere})
	add(plugin, "", pod("node2"), none, attack{name: "with it, write the assignment of a pod of another node", harmful: assign, want: elsewhere})
	add(plugin, "", running, annotate("gpumem.dev/gpu-index", "1"), []attack{
		{name: "with it, change the request of a pod of its node", harmful: annotate("gpumem.dev/gpu-count", "2"), want: onlyOwn},
		{name: "with it, write an annotation of somebody else", harmful: annotate("example.com/owner", "me"), want: onlyOwn},
		{name: "with it, write an annotation with a like prefix", harmful: annotate("gpumem.dev.example.com/owner", "me"), want: onlyOwn},
		{name: "with it, label a pod of its node", harmful: label("app"), want: onlyMeta},
		{name: "with it, write a finalizer of a pod of its node", harmful: editPod(func(p *v1.Pod) { p.Finalizers = []string{"example.com/me"} }), want: onlyMeta},
		{name: "with it, end a pod of its node", harmful: editPod(func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(1)) }), want: onlyMeta},
	}...)
	add(unbound, "", running, none, attack{name: "with a token of the plugin's account that names no node, write an assignment", harmful: assign, want: "its token names no node"})
	return out
}

// guardedAttacks returns the attacks that admission.guardGPUs refuses.
func guardedAttacks() (out []attack) {
	limit := func(node, gpus string) edit {
		return editPod(func(p *v1.Pod) {
			setEnv("NVIDIA_VISIBLE_DEVICES")(p)
			p.Spec.NodeName = node
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)}
		})
	}
	object := &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
	}
	tenant := &user.DefaultInfo{Name: "system:serviceaccount:team:dev"}
	return []attack{
		{"see all GPUs, by a limit of 0 of nvidia.com/gpu (admission.guardGPUs)", tenant, "create", object, limit("", "1"), limit("", "0"), "the pod asks for no GPU"},
		{"see all GPUs, by a limit of 1 of nvidia.com/gpu and a nodeName (admission.guardGPUs)", tenant, "create", object, limit("", "1"), limit("node1", "1"), "names its node"},
	}
}

// TestAttacks sends each attack and its harmless twin through all policies of the chart.
func TestAttacks(t *testing.T) {
	for values, all := range map[string][]attack{"default": attacks(), "custom": guardedAttacks()} {
		policies := allPolicies(t, values)
		for _, a := range all {
			t.Run(a.name, func(t *testing.T) {
				write := func(change edit) string {
					r := request{resource: "pods", by: a.who, is: a.object.DeepCopyObject()}
					if _, ok := a.object.(*v1.Node); ok {
						r.resource = "nodes"
					}
					if a.way != "create" {
						r.subresource, r.was = a.way, a.object
					}
					change(r.is.(metav1.Object))
					return refusals(t, policies, r)
				}
				if a.harmless != nil {
					if got := write(a.harmless); got != "" {
						t.Errorf("the harmless write is refused: %s", got)
					}
				}
				if got := write(a.harmful); !strings.Contains(got, a.want) {
					t.Errorf("the policies answer %q, want %q", got, a.want)
				}
			})
		}
	}
}
