package cli_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestExplainWhereNothingIsOffered(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "cpu-1", gpu.Inventory{}), kubetest.Pod(t, "ml/waits", "", 3))
	stdout, _, err := clirun.Inspect(client, "explain", "ml/waits")
	if want := "no node offers GPU memory; kubectl inspect gpumem doctor shows the cause"; err != nil || !strings.Contains(stdout, want) {
		t.Errorf("error %v, want %q in:\n%s", err, want, stdout)
	}
}

// The API server accepts a misspelt annotation, so explain warns about it.
func TestExplainSaysWhichAnnotationsHaveNoEffect(t *testing.T) {
	pod := kubetest.With(kubetest.Pod(t, "ml/waits", "", 2), func(p *v1.Pod) {
		p.Annotations = map[string]string{"gpumem.dev/gpu-core": "50", "gpumem.dev/gpu-cuont": "2", "gpumem.dev/policy": "spread", "example.com/gpu-cuont": "2"}
	})
	client := fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), pod)
	_, stderr, err := clirun.Inspect(client, "explain", "ml/waits")
	const want = "warning: annotation gpumem.dev/gpu-core has no effect, because gpumem does not know it: it is a resource: request it in the limits of a container, and remove the annotation\n" +
		"warning: annotation gpumem.dev/gpu-cuont has no effect, because gpumem does not know it: did you mean gpumem.dev/gpu-count?\n"
	if err != nil || stderr != want {
		t.Errorf("error %v, want %q, got %q", err, want, stderr)
	}
}

func TestExplainOfPodsThatHoldNothing(t *testing.T) {
	refused := kubetest.With(kubetest.Pod(t, "ml/refused", "gpu-a", 3), func(p *v1.Pod) {
		p.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "UnexpectedAdmissionError", Message: "Pod was rejected: requested number of devices unavailable"}
	})
	unread := func(p *v1.Pod) { p.Annotations[kubetest.Names(t).Policy()] = "best" }
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), refused,
		kubetest.With(kubetest.Pod(t, "ml/ended", "gpu-a", 3), func(p *v1.Pod) { unread(p); p.Status.Phase = v1.PodFailed }), kubetest.With(kubetest.Pod(t, "ml/there", "gpu-a", 3), unread))
	for pod, want := range map[string]string{
		"ml/refused": "Pod ml/refused has ended, and no longer holds GPU memory: UnexpectedAdmissionError: Pod was rejected: requested number of devices unavailable\n" +
			"Asks for:  3 GiB on one GPU\nNode:      gpu-a\n" +
			"To do:     the node was chosen without asking gpumem, by spec.nodeName, or by scheduler default-scheduler: create the pod again without nodeName, and set schedulerName to the name of gpumem's scheduler; " +
			"docs/troubleshooting.md#a-pod-fails-with-unexpectedadmissionerror explains the message\n",
		"ml/ended": "Pod ml/ended has ended, and no longer holds GPU memory\nNode:      gpu-a\n",
		"ml/there": "Pod ml/there is on a node, but its request cannot be read: annotation gpumem.dev/policy: policy \"best\": want binpack, spread or exclusive\nNode:      gpu-a\nGPU:       not known yet\n",
	} {
		if stdout, _, err := clirun.Inspect(client, "explain", pod); err != nil || stdout != want {
			t.Errorf("%s: error %v, want:\n%sgot:\n%s", pod, err, want, stdout)
		}
	}
}

// The containers of a pod on a node may fail to run, so explain shows their state.
func TestExplainSaysWhatKeepsAPodFromRunning(t *testing.T) {
	waiting := func(reason, message string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	ended := func(reason string, code int32, message string) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: reason, ExitCode: code, Message: message}}
	}
	running := v1.ContainerStatus{Name: "side", Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
	for name, tc := range map[string]struct {
		status v1.PodStatus
		want   string // empty: no line
	}{
		"runs": {v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{running}}, ""},
		"is being made": {v1.PodStatus{
			InitContainerStatuses: []v1.ContainerStatus{{Name: "first", State: waiting("ContainerCreating", "")}},
			ContainerStatuses:     []v1.ContainerStatus{{Name: "main", State: waiting("PodInitializing", "")}},
		}, ""},
		"runs after others": {v1.PodStatus{
			InitContainerStatuses: []v1.ContainerStatus{{Name: "first", State: ended("Completed", 0, "")}}, ContainerStatuses: []v1.ContainerStatus{running},
		}, ""},
		"is refused": {v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{running, {Name: "main", State: waiting("CreateContainerError", "failed:\nsets GPUMEM_X")}}},
			"container main waits: CreateContainerError: failed: sets GPUMEM_X"},
		"is refused at first": {v1.PodStatus{
			InitContainerStatuses: []v1.ContainerStatus{{Name: "first", State: waiting("CreateContainerConfigError", "")}},
			ContainerStatuses:     []v1.ContainerStatus{{Name: "main", State: waiting("PodInitializing", "")}},
		}, "container first waits: CreateContainerConfigError"},
		"has ended once": {v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "main", State: ended("Error", 3, "no GPU\n")}}},
			"container main has ended: Error, exit code 3: no GPU"},
		"ends time and again": {v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{
			Name: "main", State: waiting("CrashLoopBackOff", "back-off 10s"), LastTerminationState: ended("OOMKilled", 137, ""),
		}}}, "container main waits: CrashLoopBackOff: back-off 10s; it has ended before: OOMKilled, exit code 137"},
		"has failed": {v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{{Name: "main", State: ended("Error", 1, "")}}},
			"container main has ended: Error, exit code 1"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := kubetest.With(kubetest.Pod(t, "ml/there", "gpu-a", 3, kubetest.UUID("gpu-a", 0)), func(p *v1.Pod) { p.Status = tc.status })
			stdout, _, err := clirun.Inspect(fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), pod), "explain", "ml/there")
			want := "GPU:       0\n"
			if tc.want != "" {
				want += "State:     " + tc.want + "\n"
			}
			if tc.status.Phase != v1.PodFailed {
				want += "\nThe GPUs of the node now:\n"
			}
			if err != nil || !strings.Contains(stdout, want) {
				t.Errorf("error %v, want:\n%sgot:\n%s", err, want, stdout)
			}
		})
	}
}

func TestExplainOfWhatIsNoPodWithGPUMemory(t *testing.T) {
	asks := func(name string, resources ...v1.ResourceName) *v1.Pod {
		return kubetest.With(kubetest.Pod(t, name, "", 0), func(p *v1.Pod) {
			limits := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
			for _, r := range resources {
				limits[r] = resource.MustParse("3")
			}
			p.Spec.Containers[0].Resources.Limits = limits
		})
	}
	offers := kubetest.Node(t, "cpu-1", gpu.Inventory{})
	offers.Status.Allocatable = v1.ResourceList{"gpumem.dev/gpu-memory": resource.MustParse("3")} // another vendor's resource
	client := fake.NewClientset(offers, kubetest.Pod(t, "web/zero", "gpu-a", 0), asks("web/plain"), asks("web/offered", "gpumem.dev/gpu-memory"), asks("web/other", "aliyun.com/gpu-mem", "nvidia.com/gpu"))
	for arg, want := range map[string]string{
		"web/zero":            "pod web/zero asks for no gpumem.dev/gpu-mem: its limit is 0",
		"web/plain":           "pod web/plain asks for no gpumem.dev/gpu-mem",
		"web/offered":         "pod web/offered asks for no gpumem.dev/gpu-mem, but for gpumem.dev/gpu-memory, which is another resource",
		"web/other":           "pod web/other asks for no gpumem.dev/gpu-mem, but for aliyun.com/gpu-mem, which is another resource",
		"web/none":            `pods "none" not found in namespace web; if its controller could not create it, kubectl get events -n web --field-selector reason=FailedCreate shows the reason`,
		"deploy/api":          "deploy/api has no pods in namespace default; if it could not create them, kubectl get events -n default --field-selector reason=FailedCreate shows the reason",
		"deployment.apps/api": "deployment.apps/api has no pods in namespace default; if it could not create them, kubectl get events -n default --field-selector reason=FailedCreate shows the reason",
	} {
		if _, _, err := clirun.Inspect(client, "explain", arg); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
	for _, tc := range []struct{ args, want string }{
		{"deployment small", "deployment/small has no pods"},
		{"deployments.apps small", "deployments.apps/small has no pods"},
		{"pod none", `pods "none" not found`},
		{"small deployment", "accepts 1 arg(s), received 2"},
		{"deployment small large", "accepts 1 arg(s), received 3"},
	} {
		if _, _, err := clirun.Inspect(client, append([]string{"explain"}, strings.Fields(tc.args)...)...); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("explain %s: %v, want %q", tc.args, err, tc.want)
		}
	}
	if _, _, err := clirun.Inspect(client, "defrag", "job/x"); err == nil || !strings.HasPrefix(err.Error(), "job/x has no pods") {
		t.Errorf("defrag: %v", err)
	}
}

// explain shows whether a placed pod would now fit on each GPU model that it prefers to its own.
func TestExplainSaysHowPreferredModelsAre(t *testing.T) {
	const t4, a100, h100 = "Tesla T4", "NVIDIA A100", "NVIDIA H100"
	node := func(name string, models ...string) *v1.Node {
		inv := kubetest.Inventory(name)
		for i, model := range models {
			d := map[string]gpu.Device{t4: {Speed: 21, Allocatable: 14}, a100: {Speed: 100, Allocatable: 79}, h100: {Speed: 317, Allocatable: 79}}[model]
			d.UUID, d.Index, d.Model, d.MemoryMiB, d.NUMANode = kubetest.UUID(name, i), i, model, int64(d.Allocatable)*1024, -1
			inv.Devices = append(inv.Devices, d)
		}
		return kubetest.Node(t, name, inv)
	}
	pod := func(preference string, units int64, change func(*v1.Pod), on ...gpu.UUID) *v1.Pod {
		return kubetest.With(kubetest.Pod(t, "ml/p", "gpu-a", units, on...), func(p *v1.Pod) {
			p.Annotations["gpumem.dev/gpu-model-preference"] = preference
			change(p)
		})
	}
	plain, on0 := func(*v1.Pod) {}, kubetest.UUID("gpu-a", 0)
	holds := func(units int64, on gpu.UUID) *v1.Pod {
		return kubetest.Pod(t, "ml/other-"+string(on), "gpu-b", units, on)
	}
	cluster := fake.NewClientset
	const room = "it would fit; a pod that is placed is not moved"
	for name, tc := range map[string]struct {
		client *fake.Clientset
		want   []string
	}{
		"full": {cluster(node("gpu-a", t4), node("gpu-b", a100), pod("fastest", 5, plain, on0), holds(76, kubetest.UUID("gpu-b", 0))),
			[]string{"NVIDIA A100 on gpu-b; now: needs 5 GiB on one GPU that matches NVIDIA A100; free: GPU0 3 (3 GiB in all)"}},
		"room": {cluster(node("gpu-a", t4), node("gpu-b", a100), pod("fastest", 5, plain, on0)), []string{"NVIDIA A100 on gpu-b; now: " + room}},
		"the node with room of several": {cluster(node("gpu-a", t4), node("gpu-b", a100), node("gpu-c", a100), pod("fastest", 5, plain, on0), holds(76, kubetest.UUID("gpu-b", 0))),
			[]string{"NVIDIA A100 on gpu-c; now: " + room}},
		"each model, the best first": {cluster(node("gpu-a", t4), node("gpu-b", a100, h100), pod("fastest", 5, plain, on0), holds(76, kubetest.UUID("gpu-b", 0))),
			[]string{"NVIDIA H100 on gpu-b; now: " + room, "NVIDIA A100 on gpu-b; now: needs 5 GiB on one GPU that matches NVIDIA A100; free: GPU0 3 (3 GiB in all)"}},
		"one on the same node": {cluster(node("gpu-a", t4, a100), pod("fastest", 5, plain, on0)), []string{"NVIDIA A100 on gpu-a; now: " + room}},
		"cordoned": {cluster(node("gpu-a", t4), kubetest.With(node("gpu-b", a100), func(n *v1.Node) { n.Spec.Unschedulable = true }), pod("fastest", 5, plain, on0)),
			[]string{"NVIDIA A100 on gpu-b; now: the node is cordoned"}},
		"the kubelet's sum": {cluster(node("gpu-a", t4), kubetest.With(node("gpu-b", a100, t4), func(n *v1.Node) { clitest.Sicken(t, n, 1) }), pod("fastest", 75, plain, on0), holds(14, kubetest.UUID("gpu-b", 1))),
			[]string{"NVIDIA A100 on gpu-b; now: kube-scheduler counts 14 GiB of pods on GPU1 (out of use) against the node's other GPUs: kubectl inspect gpumem drain gpu-b 1"}},
		"a node that is not for it": {cluster(node("gpu-a", t4), kubetest.With(node("gpu-b", a100), func(n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: "team", Effect: v1.TaintEffectNoSchedule}}
		}), pod("fastest", 5, plain, on0)), nil},
		"a model that it excludes":     {cluster(node("gpu-a", t4), node("gpu-b", a100), pod("fastest", 5, func(p *v1.Pod) { p.Annotations["gpumem.dev/gpu-model"] = "*T4" }, on0)), nil},
		"a model that is too small":    {cluster(node("gpu-a", a100), node("gpu-b", t4), pod("cheapest", 40, plain, on0)), nil},
		"too few of the model":         {cluster(node("gpu-a", t4, t4), node("gpu-b", h100), pod("fastest", 4, plain, on0, kubetest.UUID("gpu-a", 1))), nil},
		"its own GPUs count as free":   {cluster(node("gpu-a", h100, a100, a100), pod("cheapest", 140, plain, on0, kubetest.UUID("gpu-a", 1))), []string{"NVIDIA A100 on gpu-a; now: " + room}},
		"it has the best":              {cluster(node("gpu-a", t4), node("gpu-b", a100), pod("cheapest", 5, plain, on0)), nil},
		"beside what it does not have": {cluster(node("gpu-a", a100, t4), node("gpu-b", a100), pod("fastest", 5, plain, on0)), nil},
		"no opinion":                   {cluster(node("gpu-a", t4), node("gpu-b", a100), kubetest.Pod(t, "ml/p", "gpu-a", 5, on0)), nil},
	} {
		stdout, _, err := clirun.Inspect(tc.client, "explain", "ml/p")
		var got []string
		for line := range strings.Lines(stdout) {
			if model, ok := strings.CutPrefix(line, "Preferred: "); ok {
				got = append(got, strings.TrimSuffix(model, "\n"))
			}
		}
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// A pod keeps running on a failed GPU, so explain shows the GPU's health.
func TestExplainSaysHowThePodsGPUIs(t *testing.T) {
	for name, tc := range map[string]struct {
		status gpu.Status
		owner  string
		want   string
	}{
		"healthy":        {gpu.Status{}, "StatefulSet", ""},
		"of a DaemonSet": {gpu.Unhealthy("XID 79"), "DaemonSet", "Health:    GPU1 is unhealthy (XID 79): after kubectl delete pod --namespace ml p, its DaemonSet creates it again on another GPU, if it fits on one\n"},
		"unhealthy":      {gpu.Unhealthy("XID 79"), "StatefulSet", "Health:    GPU1 is unhealthy (XID 79): after kubectl delete pod --namespace ml p, its StatefulSet creates it again on another GPU, if it fits on one\n"},
		"a bare pod":     {gpu.Unhealthy("XID 79"), "", "Health:    GPU1 is unhealthy (XID 79): delete the pod to have it placed on another GPU, if it fits on one, and create it again: it has no controller\n"},
		"plugin stopped": {gpu.Status{Stopped: true}, "StatefulSet", "Health:    GPU1 takes no new pods: its device plugin is stopped or being replaced; its present pods keep running\n"},
		"cordoned":       {gpu.Status{Cordoned: true}, "StatefulSet", "Health:    GPU1 is cordoned: it takes no new pods, and its present pods stay\n"},
	} {
		inv := kubetest.Inventory("gpu-a", 16, 16)
		inv.Devices[1].Status = tc.status
		pod := kubetest.With(kubetest.Pod(t, "ml/p", "gpu-a", 5, kubetest.UUID("gpu-a", 1)), func(p *v1.Pod) { p.Annotations["gpumem.dev/gpu-index"] = "7" })
		if tc.owner != "" {
			pod = kubetest.With(pod, kubetest.OwnedBy(tc.owner))
		}
		stdout, _, err := clirun.Inspect(fake.NewClientset(kubetest.Node(t, "gpu-a", inv), pod), "explain", "ml/p")
		if err != nil || strings.Contains(stdout, "Health:") != (tc.want != "") || !strings.Contains(stdout, tc.want) || !strings.Contains(stdout, "GPU:       1\n") {
			t.Errorf("%s: error %v, want %q and GPU 1 in:\n%s", name, err, tc.want, stdout)
		}
	}
}

// Another GPU may have the index of a removed GPU, so explain does not show the removed GPU's index.
func TestExplainOfAPodWhoseGPUIsGone(t *testing.T) {
	pod := kubetest.With(kubetest.Pod(t, "ml/p", "gpu-a", 5, "GPU-gone"), func(p *v1.Pod) { p.Annotations["gpumem.dev/gpu-index"] = "0" })
	stdout, _, err := clirun.Inspect(fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), pod), "explain", "ml/p")
	want := "GPU:       ?\nHealth:    it has GPU-gone, which the node no longer offers: if that GPU will not return, delete the pod to have it placed on another GPU, if it fits on one\n"
	if err != nil || !strings.Contains(stdout, want) {
		t.Errorf("error %v, want %q in:\n%s", err, want, stdout)
	}
}

// If the pods cannot be listed, explain must not show all GPUs as empty.
func TestExplainOfAPlacedPodWhereNotAllPodsMayBeRead(t *testing.T) {
	pod := kubetest.With(kubetest.Pod(t, "ml/p", "gpu-a", 3, kubetest.UUID("gpu-a", 0)), func(p *v1.Pod) { p.Annotations["gpumem.dev/gpu-model-preference"] = "fastest" })
	quick := kubetest.Inventory("gpu-b", 80)
	quick.Devices[0].Speed = 100
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Node(t, "gpu-b", quick), pod)
	clitest.Forbid(client, "pods")
	stdout, _, err := clirun.Inspect(client, "explain", "ml/p")
	if want := "chose; the state of its GPUs is unknown without a list of all pods: "; err != nil || !strings.Contains(stdout, want) || strings.Contains(stdout, "Preferred") || strings.Contains(stdout, "VERDICT") {
		t.Errorf("error %v, want %q and no GPUs in:\n%s", err, want, stdout)
	}
}

// byNode marks a pod as placed by the device plugin.
func byNode(p *v1.Pod) {
	const key = "gpumem.dev/assignment"
	p.Annotations[key] = strings.Replace(p.Annotations[key], `{`, `{"byNode":true,`, 1)
}

func TestExplainSaysWhoChoseTheGPU(t *testing.T) {
	place := func(name, scheduler string) *v1.Pod {
		return kubetest.With(kubetest.Pod(t, name, "gpu-a", 3, kubetest.UUID("gpu-a", 0)), func(p *v1.Pod) { p.Spec.SchedulerName = scheduler })
	}
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), clitest.SchedulerConfig(), place("ml/ours", "gpumem-scheduler"), place("ml/renamed", "old-name"),
		kubetest.With(place("ml/theirs", "default-scheduler"), byNode), kubetest.With(place("ml/pinned", "gpumem-scheduler"), byNode),
		kubetest.With(place("ml/two", "gpumem-scheduler"), func(p *v1.Pod) { p.Annotations["gpumem.dev/gpu-count"] = "3" }))
	for pod, want := range map[string]string{
		"ml/ours":    "is on a node that scheduler gpumem-scheduler chose\n",
		"ml/pinned":  "is on a node that was chosen without asking gpumem, by spec.nodeName: the node's device plugin chose the GPU\n",
		"ml/renamed": "is on a node that scheduler old-name chose; this scheduler is not known to ask gpumem now: if it does not, a new pod needs schedulerName gpumem-scheduler\n",
		"ml/two":     "chose; annotation gpumem.dev/assignment names 1 GPUs, and the pod asks for 3 (annotation gpumem.dev/gpu-count): the pod counts on each GPU of its node until they agree\n",
		"ml/theirs":  "is on a node that was chosen without asking gpumem, by spec.nodeName, or by scheduler default-scheduler: the node's device plugin chose the GPU; pods with schedulerName gpumem-scheduler go where they fit on one GPU\n",
	} {
		if stdout, _, err := clirun.Inspect(client, "explain", pod); err != nil || !strings.Contains(stdout, want) {
			t.Errorf("error %v, want %q in:\n%s", err, want, stdout)
		}
	}
}

func TestExplainSaysWhoChoseTheNodeOfAPodThatWasRefused(t *testing.T) {
	refuse := func(name, scheduler string, on ...gpu.UUID) *v1.Pod {
		return kubetest.With(kubetest.Pod(t, name, "gpu-a", 3, on...), func(p *v1.Pod) {
			p.Spec.SchedulerName, p.Status = scheduler, v1.PodStatus{Phase: v1.PodFailed, Reason: "UnexpectedAdmissionError", Message: "Pod was rejected"}
		})
	}
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), clitest.SchedulerConfig(),
		refuse("ml/ours", "gpumem-scheduler", kubetest.UUID("gpu-a", 0)), refuse("ml/pinned", "gpumem-scheduler"), refuse("ml/theirs", "default-scheduler"),
		kubetest.With(refuse("ml/evicted", "gpumem-scheduler", kubetest.UUID("gpu-a", 0)), func(p *v1.Pod) { p.Status.Reason = "Evicted" }))
	const again = "create the pod again without nodeName, and set schedulerName to gpumem-scheduler; docs/troubleshooting.md#"
	for pod, want := range map[string]string{
		"ml/ours":    "GPU:       0\nTo do:     scheduler gpumem-scheduler had chosen the node and the GPU: delete the pod, and create it again if it has no controller; docs/troubleshooting.md#",
		"ml/pinned":  "Node:      gpu-a\nTo do:     the node was chosen without asking gpumem, by spec.nodeName: " + again,
		"ml/theirs":  "Node:      gpu-a\nTo do:     the node was chosen without asking gpumem, by spec.nodeName, or by scheduler default-scheduler: " + again,
		"ml/evicted": "Evicted: Pod was rejected\nAsks for:  3 GiB on one GPU\nNode:      gpu-a\nGPU:       0\n",
	} {
		stdout, _, err := clirun.Inspect(client, "explain", pod)
		if err != nil || !strings.Contains(stdout, want) || strings.Contains(stdout, "To do:") == (pod == "ml/evicted") {
			t.Errorf("%s: error %v, want %q in:\n%s", pod, err, want, stdout)
		}
	}
}

func TestExplainSaysByWhichPolicy(t *testing.T) {
	exclusive := kubetest.With(kubetest.Pod(t, "ml/alone", "", 3), func(p *v1.Pod) { p.Annotations[kubetest.Names(t).Policy()] = "exclusive" })
	objects := []runtime.Object{kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), exclusive, kubetest.Pod(t, "ml/any", "", 3)}
	other := clitest.ExtenderDeployment("gpumem-system", "aliyun.com", "binpack")
	other.Name = "another"
	installed := append([]runtime.Object{
		other, clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "spread"), clitest.ExtenderDeployment("default", "gpumem.dev", "binpack"),
	}, objects...)
	ofDefaults := clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "")
	ofDefaults.Spec.Template.Spec.InitContainers[0].Args = nil
	unread := append([]runtime.Object{clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "best")}, objects...)
	const warns = "warning: assuming the policy binpack, because the cluster's policy cannot be read: "
	for _, tc := range []struct {
		objects []runtime.Object
		pod     string
		want    string
		warning string
	}{
		{installed, "ml/alone", "\nPolicy:    exclusive\n", ""},
		{installed, "ml/any", "\nPolicy:    spread (the cluster's; the pod sets none)\n", ""},
		{append([]runtime.Object{ofDefaults}, objects...), "ml/any", "\nPolicy:    binpack (the cluster's; the pod sets none)\n", ""},
		{objects, "ml/alone", "\nPolicy:    exclusive\n", warns + "no Deployment of gpumem's scheduler found in namespace gpumem-system (--gpumem-namespace selects another)\n"},
		{objects, "ml/any", "", warns + "no Deployment of gpumem's scheduler found in namespace gpumem-system (--gpumem-namespace selects another)\n"},
		{unread, "ml/any", "", warns + "--policy of Deployment gpumem-scheduler: \"best\": want binpack or spread\n"},
	} {
		stdout, stderr, err := clirun.Inspect(fake.NewClientset(tc.objects...), "explain", tc.pod)
		if err != nil || !strings.Contains(stdout, tc.want) || strings.Contains(stdout, "Policy:") != (tc.want != "") {
			t.Errorf("%s: error %v, want %q in:\n%s", tc.pod, err, tc.want, stdout)
		}
		if stderr != tc.warning {
			t.Errorf("%s: warning %q, want %q", tc.pod, stderr, tc.warning)
		}
	}
}

func TestExplainShowsCoresWhereTheyAreOffered(t *testing.T) {
	offering := kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16))
	offering.Status.Allocatable[kubetest.Names(t).GPUCore()] = resource.MustParse("100")
	holds := kubetest.With(kubetest.Pod(t, "ml/holds", "gpu-a", 3, kubetest.UUID("gpu-a", 0)), func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits[kubetest.Names(t).GPUCore()] = resource.MustParse("30")
	})
	waits := kubetest.Pod(t, "ml/waits", "", 3)
	for _, tc := range []struct {
		node *v1.Node
		want string
	}{
		{offering, "NODE   GPU  MODEL        TAKEN/TOTAL  FREE    FREE-CORE(%)  VERDICT\n" +
			"gpu-a  0    NVIDIA A100  3/16 GiB     13 GiB  70            fits\n"},
		{kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), "NODE   GPU  MODEL        TAKEN/TOTAL  FREE    VERDICT\n"},
	} {
		stdout, _, err := clirun.Inspect(fake.NewClientset(tc.node, holds, waits), "explain", "ml/waits")
		if err != nil || !strings.Contains(stdout, tc.want) {
			t.Errorf("error %v, want:\n%sin:\n%s", err, tc.want, stdout)
		}
	}
}

func TestExplainSaysAllThatAPodAsksFor(t *testing.T) {
	for want, annotations := range map[string]map[string]string{
		"on one GPU": nil,
		"on each of 2 GPUs matching A100*,!*PCIe,GPU-4*":   {"gpu-count": "2", "gpu-model": "A100*,!*PCIe", "gpu-uuid": "GPU-4*"},
		"on one GPU, of the fastest model that it fits on": {"gpu-model-preference": "fastest"},
		`on one GPU, of the slowest model that it fits on, on one GPU with pods of gpu-group "a" where it fits, apart from pods of exclusive-group "b", at the level mps or a stronger one`: {
			"gpu-model-preference": "cheapest", "gpu-group": "a", "exclusive-group": "b", "enforcement": "mps",
		},
	} {
		pod := kubetest.With(kubetest.Pod(t, "ml/waits", "", 4), func(p *v1.Pod) {
			p.Annotations = make(map[string]string)
			for key, value := range annotations {
				p.Annotations["gpumem.dev/"+key] = value
			}
		})
		stdout, _, err := clirun.Inspect(fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), pod), "explain", "ml/waits")
		if err != nil || !strings.Contains(stdout, " "+want+"\n") {
			t.Errorf("error %v, want %q in:\n%s", err, want, stdout)
		}
	}
}

func TestAPodWhoseNodeIsGone(t *testing.T) {
	stdout, _, err := clirun.Inspect(fake.NewClientset(kubetest.Node(t, "gpu-b", kubetest.Inventory("gpu-b", 16)), kubetest.Pod(t, "ml/there", "gpu-a", 3, kubetest.UUID("gpu-a", 0))), "explain", "ml/there")
	if want := "State:     its node is gone"; err != nil || !strings.Contains(stdout, want) {
		t.Errorf("error %v, want %q in:\n%s", err, want, stdout)
	}
}

// If the pods cannot be listed, explain does not claim that a pod fits.
func TestExplainWithoutTheOtherPods(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Pod(t, "ml/waits", "", 3))
	clitest.Forbid(client, "pods")
	stdout, _, err := clirun.Inspect(client, "explain", "ml/waits")
	if want := "waits, and its scheduler has reported no reason"; err != nil || !strings.Contains(stdout, want) || strings.Contains(stdout, "would fit") {
		t.Errorf("error %v, want %q in:\n%s", err, want, stdout)
	}
}

// For a controller, explain shows its newest waiting pod or, if none of its pods waits, its newest pod.
func TestExplainThePodOfAController(t *testing.T) {
	of := func(kind, owner, hash string, minute int) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: new(true)}}
			p.Labels = map[string]string{"pod-template-hash": hash}
			p.CreationTimestamp = metav1.NewTime(time.Unix(1700000000, 0).Add(time.Duration(minute) * time.Minute))
		}
	}
	pod := func(name, node string, change func(*v1.Pod)) *v1.Pod {
		return kubetest.With(kubetest.Pod(t, "ml/"+name, node, 3, kubetest.UUID("gpu-a", 0)), change)
	}
	client := fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)),
		pod("web-runs", "gpu-a", of("ReplicaSet", "web-1", "1", 9)), pod("web-old", "", of("ReplicaSet", "web-1", "1", 1)), pod("web-new", "", of("ReplicaSet", "web-2", "2", 2)),
		pod("other", "", of("ReplicaSet", "web-x-1", "1", 8)), pod("train-a", "", of("Job", "train", "", 1)), pod("train-b", "", of("Job", "train", "", 2)),
		pod("nightly-a", "", of("Job", "nightly-29000000", "", 1)), pod("db-0", "gpu-a", of("StatefulSet", "db", "", 1)), pod("db-1", "gpu-a", of("StatefulSet", "db", "", 2)))
	for _, namespaced := range []bool{false, true} {
		if namespaced {
			clitest.OnlyIn(client, "ml")
		}
		for arg, want := range map[string]string{
			"deployment/web": "web-new", "deploy/web": "web-new", "deployments.apps/web": "web-new", "rs/web-1": "web-old",
			"job/train": "train-b", "cronjob/nightly": "nightly-a", "sts/db": "db-1",
		} {
			stdout, _, err := clirun.Inspect(client, "explain", "-n", "ml", arg)
			if err != nil || !strings.HasPrefix(stdout, "Pod ml/"+want+" ") {
				t.Errorf("%s, the user may read only one namespace: %t: error %v, want pod %s:\n%s", arg, namespaced, err, want, stdout)
			}
		}
	}
}
