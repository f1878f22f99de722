package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apply applies a file of config/samples in the test's namespace.
func (e *env) apply(sample string) {
	e.Helper()
	if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "apply", "--namespace", e.namespace, "--filename", suite.stack.Sample(sample)); err != nil {
		e.Fatal(err)
	}
}

// sum returns the units that a node has given away, in the books.
func (e *env) sum(node string) (sum int64) {
	e.Helper()
	for _, units := range e.books()[node] {
		sum += units
	}
	return sum
}

// log returns what a container has printed.
func (e *env) log(pod, container string) string {
	e.Helper()
	text, err := e.client.CoreV1().Pods(e.namespace).GetLogs(pod, &v1.PodLogOptions{Container: container}).DoRaw(e.ctx)
	if err != nil {
		e.Fatal(err)
	}
	return string(text)
}

// nothingIsHeld waits until neither the books nor the kubelet of a node have
// anything of the test's pods, whose objects may still be there.
func (e *env) nothingIsHeld(node string) {
	e.Helper()
	e.eventually("nothing is held on "+node, func() (bool, string) {
		sum, held := e.sum(node), e.held(node)
		return sum == 0 && len(held) == 0, fmt.Sprintf("%d units in the books, %v at the kubelet", sum, held)
	})
}

func TestAnEphemeralContainerGetsNoGPU(t *testing.T) {
	e := setup(t)
	e.create(e.pod("debugged", 3))
	pod := e.running("debugged")
	before, books := e.agree("debugged", "main"), e.books()

	add := func(c v1.Container) error {
		pod := e.get("debugged")
		pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
			Name: c.Name, Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, Args: c.Args, Resources: c.Resources,
		}}}
		_, err := e.client.CoreV1().Pods(e.namespace).UpdateEphemeralContainers(e.ctx, "debugged", pod, metav1.UpdateOptions{})
		return err
	}
	if err := add(sample("debug", 1)); err == nil || !strings.Contains(err.Error(), "resources: Forbidden") {
		t.Errorf("an ephemeral container that asks for GPU memory: %v, want that the API server forbids it", err)
	}
	if err := add(sample("debug", 0, "-exit-after=100ms")); err != nil {
		t.Fatal(err)
	}
	e.eventually("the ephemeral container has ended", func() (bool, string) {
		pod = e.get("debugged")
		states := pod.Status.EphemeralContainerStatuses
		return len(states) == 1 && states[0].State.Terminated != nil, fmt.Sprint(states)
	})
	if text := e.log("debugged", "debug"); text != "" {
		t.Errorf("it was told of a grant:\n%s", text)
	}
	if diff := cmp.Diff(before, e.agree("debugged", "main")); diff != "" {
		t.Errorf("GPUs (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(books, e.books()); diff != "" {
		t.Errorf("books (-before +after):\n%s", diff)
	}
}

func TestOverheadOfAPodIsOnNoGPU(t *testing.T) {
	e := setup(t)
	class := func(name string, overhead v1.ResourceList) func(*v1.Pod) {
		name = e.namespace + "-" + name
		object := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: "runc", Overhead: &nodev1.Overhead{PodFixed: overhead}}
		if _, err := e.client.NodeV1().RuntimeClasses().Create(e.ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.atEnd(func() {
			if err := e.client.NodeV1().RuntimeClasses().Delete(e.ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		return func(pod *v1.Pod) { pod.Spec.RuntimeClassName = &name }
	}
	e.create(e.pod("sandboxed", 3, onNode("node1"), class("usual", v1.ResourceList{v1.ResourceCPU: resource.MustParse("10m"), v1.ResourceMemory: resource.MustParse("8Mi")})))
	e.running("sandboxed")
	e.agree("sandboxed", "main")
	if got := e.sum("node1"); got != 3 {
		t.Errorf("the books have %d units for it, want 3", got)
	}
	// GPU memory as overhead is taken from the node's sum and from no GPU.
	e.create(e.pod("odd", 3, onNode("node1"), class("odd", v1.ResourceList{gpuMem: resource.MustParse("2")})))
	e.running("odd")
	gpus := e.agree("odd", "main")
	if ids := e.held("node1")[e.namespace+"/odd/main"]; len(ids) != 3 {
		t.Errorf("the kubelet has given it %v, want 3 IDs", ids)
	}
	e.create(e.pod("whole", t4, onNode("node1")))
	e.running("whole")
	e.create(e.pod("rest", t4-6, onNode("node1")))
	e.pending("rest", "Insufficient gpumem.dev/gpu-mem")
	if got := e.books()["node1"][gpus[0]]; got != 6 {
		t.Errorf("the books have %d units on its GPU, want 6", got)
	}
}

func TestWhatTheAPIServerRefuses(t *testing.T) {
	e := setup(t)
	three, four := v1.ResourceList{gpuMem: resource.MustParse("3")}, v1.ResourceList{gpuMem: resource.MustParse("4")}
	for name, tc := range map[string]struct {
		resources v1.ResourceRequirements
		want      string
	}{
		"a request without a limit":        {v1.ResourceRequirements{Requests: three}, "Limit must be set for non overcommitable resources"},
		"a request smaller than its limit": {v1.ResourceRequirements{Requests: three, Limits: four}, "must be equal to gpumem.dev/gpu-mem limit"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := e.pod("refused", 0)
			pod.Spec.Containers[0].Resources = tc.resources
			_, err := e.client.CoreV1().Pods(e.namespace).Create(e.ctx, pod, metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	both := e.pod("both", 0)
	both.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: three, Limits: three}
	e.create(both)
	e.running("both")
	e.agree("both", "main")
	limit := e.create(e.pod("limit", 3))
	if got := limit.Spec.Containers[0].Resources.Requests[gpuMem]; got.Value() != 3 {
		t.Errorf("a limit alone makes a request of %s, want 3", got.String())
	}
}

func TestAJobThatCompletesFreesItsMemory(t *testing.T) {
	e := setup(t)
	e.apply("job.yaml")
	var job *batchv1.Job
	e.eventually("the job has completed", func() (bool, string) {
		var err error
		job, err = e.client.BatchV1().Jobs(e.namespace).Get(e.ctx, "train", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return job.Status.Succeeded == 2, fmt.Sprint(job.Status)
	})
	pods, err := e.client.CoreV1().Pods(e.namespace).List(e.ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) != 2 {
		t.Fatalf("%d pods of the job are left, %v; want 2", len(pods.Items), err)
	}
	for _, pod := range pods.Items {
		if gpus := e.assigned(&pod); len(gpus) != 1 || pod.Status.Phase != v1.PodSucceeded {
			t.Errorf("%s: %s, on %v", pod.Name, pod.Status.Phase, gpus)
		}
	}
	for _, node := range e.cluster.Nodes() {
		e.nothingIsHeld(node)
	}
}

func TestAPodThatFails(t *testing.T) {
	e := setup(t)
	fails := func(policy v1.RestartPolicy) func(*v1.Pod) {
		return func(pod *v1.Pod) {
			pod.Spec.RestartPolicy = policy
			pod.Spec.Containers[0].Args = []string{"-exit-after=100ms", "-exit-code=1"}
		}
	}
	t.Run("for good frees its memory", func(*testing.T) {
		e.create(e.pod("once", t4, onNode("node1"), fails(v1.RestartPolicyNever)))
		e.eventually("it has failed", func() (bool, string) {
			pod := e.get("once")
			return pod.Status.Phase == v1.PodFailed, string(pod.Status.Phase)
		})
		e.nothingIsHeld("node1")
	})
	t.Run("and starts again keeps its GPU", func(t *testing.T) {
		e.create(e.pod("again", 3, onNode("node1"), annotated("policy", "spread"), fails(v1.RestartPolicyOnFailure)))
		e.eventually("it has been started twice", func() (bool, string) {
			states := e.get("again").Status.ContainerStatuses
			return len(states) == 1 && states[0].RestartCount >= 1, fmt.Sprint(states)
		})
		if gpus := e.agree("again", "main"); len(gpus) != 1 {
			t.Errorf("on %v, want one GPU", gpus)
		}
		if got := e.sum("node1"); got != 3 {
			t.Errorf("the books have %d units, want 3", got)
		}
	})
}

func TestADaemonSetHasAPodOnEachNodeWithGPUs(t *testing.T) {
	e := setup(t)
	everywhere := func(app string) map[string]string {
		t.Helper()
		pods := make(map[string]string) // by node
		e.eventually("each node with GPUs runs a pod of "+app, func() (bool, string) {
			list, err := e.client.CoreV1().Pods(e.namespace).List(e.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
			if err != nil {
				return false, err.Error()
			}
			var states []string
			for _, pod := range list.Items {
				if ready(&pod) {
					pods[pod.Spec.NodeName] = pod.Name
				}
				states = append(states, fmt.Sprint(pod.Name, " ", pod.Status.Phase, " ", pod.Status.Message, waitsBecause(&pod)))
			}
			return len(pods) == len(withGPUs), fmt.Sprint(states)
		})
		for _, name := range pods {
			if gpus := e.agree(name, "watch"); len(gpus) != 1 {
				t.Errorf("%s is on %v, want one GPU", name, gpus)
			}
		}
		return pods
	}
	e.apply("daemonset.yaml")
	everywhere("watcher")
	// The same by the cluster's own scheduler, which knows of no GPU.
	set, err := e.client.AppsV1().DaemonSets(e.namespace).Get(e.ctx, "watcher", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "bypass"}
	bypass := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "bypass"}, Spec: set.Spec}
	bypass.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	bypass.Spec.Template.Labels = labels
	bypass.Spec.Template.Spec.SchedulerName = v1.DefaultSchedulerName
	if _, err := e.client.AppsV1().DaemonSets(e.namespace).Create(e.ctx, bypass, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	everywhere("bypass")
	for _, node := range withGPUs {
		if got := e.sum(node); got != 2 {
			t.Errorf("the books have %d units on %s, want 2", got, node)
		}
	}
	for _, name := range []string{"watcher", "bypass"} {
		if err := e.client.AppsV1().DaemonSets(e.namespace).Delete(e.ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func TestARequestTranslatedFromHAMi(t *testing.T) {
	e := setup(t)
	e.apply("from-hami.yaml")
	var name string
	e.eventually("the deployment has a pod", func() (bool, string) {
		list, err := e.client.CoreV1().Pods(e.namespace).List(e.ctx, metav1.ListOptions{LabelSelector: "app=from-hami"})
		if err != nil || len(list.Items) != 1 {
			return false, fmt.Sprint(len(list.Items), err)
		}
		name = list.Items[0].Name
		return true, ""
	})
	pod := e.running(name)
	gpus := e.agree(name, "serve")
	if len(gpus) != 2 || pod.Spec.NodeName != "node1" {
		t.Errorf("on %v of %s, want the two T4 of node1", gpus, pod.Spec.NodeName)
	}
	for _, gpu := range gpus {
		if got := e.books()["node1"][gpu]; got != 3 {
			t.Errorf("the books have %d units on %s, want 3", got, gpu)
		}
	}
	if got := e.environment(name, "serve")["GPUMEM_LIMIT_MIB"]; got != "3072" {
		t.Errorf("it is told of %s MiB, want 3072 of each GPU", got)
	}
	if err := e.client.AppsV1().Deployments(e.namespace).Delete(e.ctx, "from-hami", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func TestAPodResizedInPlaceKeepsItsGPU(t *testing.T) {
	e := setup(t)
	e.create(e.pod("resized", 3, func(pod *v1.Pod) {
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("10m"), v1.ResourceMemory: resource.MustParse("16Mi"), gpuMem: resource.MustParse("3")}
		pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
			{ResourceName: v1.ResourceCPU, RestartPolicy: v1.NotRequired},
			{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer},
		}
	}))
	started := containerIDs(e.running("resized"))
	before, books := e.agree("resized", "main"), e.books()
	resize := func(name v1.ResourceName, amount string) error {
		pod := e.get("resized")
		resources := &pod.Spec.Containers[0].Resources
		resources.Requests[name] = resource.MustParse(amount)
		if _, ok := resources.Limits[name]; ok {
			resources.Limits[name] = resource.MustParse(amount)
		}
		_, err := e.client.CoreV1().Pods(e.namespace).UpdateResize(e.ctx, "resized", pod, metav1.UpdateOptions{})
		return err
	}
	resized := func(name v1.ResourceName, amount string) {
		t.Helper()
		if err := resize(name, amount); err != nil {
			t.Fatal(err)
		}
		e.eventually(fmt.Sprintf("%s is %s", name, amount), func() (bool, string) {
			pod := e.get("resized")
			if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].Resources == nil {
				return false, fmt.Sprint(pod.Status.ContainerStatuses)
			}
			got := pod.Status.ContainerStatuses[0].Resources.Requests[name]
			return got.Cmp(resource.MustParse(amount)) == 0 && ready(pod), fmt.Sprint(got.String(), pod.Status.Conditions)
		})
		if diff := cmp.Diff(before, e.agree("resized", "main")); diff != "" {
			t.Errorf("GPUs (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(books, e.books()); diff != "" {
			t.Errorf("books (-before +after):\n%s", diff)
		}
	}
	if err := resize(gpuMem, "4"); err == nil || !strings.Contains(err.Error(), "only cpu and memory resources are mutable") {
		t.Errorf("more GPU memory: %v, want that the API server refuses it", err)
	}
	resized(v1.ResourceCPU, "20m")
	if diff := cmp.Diff(started, containerIDs(e.get("resized"))); diff != "" {
		t.Errorf("containers (-before +after):\n%s", diff)
	}
	resized(v1.ResourceMemory, "24Mi")
	if slices.Equal([]string{started["main"]}, []string{containerIDs(e.get("resized"))["main"]}) {
		t.Error("the container was not started again, as its policy for memory wants it")
	}
}
