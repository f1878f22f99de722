package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// The parts of the policies' messages about annotations of gpumem.
const (
	refusedAtCreation = "is written by gpumem when it places the pod"
	refusedOnANode    = "of a pod that has a node does not change any more"
)

// attackTime bounds one attack.
const attackTime = 2 * time.Minute

// A scene has an attacking tenant with the role edit in one namespace, and a victim in another namespace.
// The victim's pod "alone" has one GPU of node1 exclusively, so the tenant's pod "mine" is on the other.
type scene struct {
	*env
	victim     *env
	tenant     kubernetes.Interface
	controller kubernetes.Interface // may also patch subresources of the tenant's pods
	alone, own string               // UUIDs of the GPUs of the pods alone and mine
}

func newScene(t *testing.T) *scene {
	e := setup(t)
	s := &scene{env: e, tenant: e.asEditor()}
	_, err := e.client.RbacV1().Roles(e.namespace).Create(e.ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"}, Verbs: []string{"get", "patch", "update"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.bindRole("controller", "Role", "more")
	s.controller = e.as("controller")

	s.victim = e.copyFor(e.ctx, t)
	if s.victim.namespace, err = e.cluster.MakeNamespace(e.ctx, "victim-"); err != nil {
		t.Fatal(err)
	}
	e.atEnd(func() {
		s.victim.ctx = e.ctx
		if _, err := s.victim.kubectl("delete", "--ignore-not-found", "--all", "--grace-period=0", "--force", "jobs,pods"); err != nil {
			t.Error(err)
		}
		if err := e.client.CoreV1().Namespaces().Delete(e.ctx, s.victim.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	s.victim.create(s.victim.pod("alone", 2, annotated("policy", "exclusive"), onNode("node1")))
	s.victim.running("alone")
	e.create(e.pod("mine", 2, onNode("node1")))
	e.running("mine")
	e.create(e.pod("waits", 1, annotated("gpu-uuid", "GPU-none")))
	s.alone, s.own = s.victim.agree("alone", "main")[0], e.agree("mine", "main")[0]
	return s
}

// copyFor returns the environment for a subtest.
func (e *env) copyFor(ctx context.Context, t *testing.T) *env {
	sub := *e
	sub.T, sub.ctx = t, ctx
	return &sub
}

// try runs one attack.
func (s *scene) try(name string, attack func(*scene)) {
	s.Run(name, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), attackTime)
		defer cancel()
		sub := *s
		sub.env, sub.victim = s.copyFor(ctx, t), s.victim.copyFor(ctx, t)
		attack(&sub)
	})
}

// refused fails the test unless err has these words.
func (e *env) refused(err error, words string) {
	e.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		e.Errorf("the API server answers %v, want it to refuse with %q", err, words)
	}
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// allocated returns an assignment of units on a GPU.
func allocated(units int, uuid string) string {
	return fmt.Sprintf(`{"v":1,"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":%q,"index":0,"units":%d}]}`, uuid, units)
}

func placed(pod *v1.Pod) { pod.Spec.NodeName = "node1" }

func gated(pod *v1.Pod) {
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/gate"}}
}

func doing(args ...string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.Containers[0].Args = args
		pod.Spec.RestartPolicy = v1.RestartPolicyNever
	}
}

// remove deletes a pod at once and waits until no GPU has memory allocated to it.
func (e *env) remove(name string) {
	e.Helper()
	e.delete(name, 0)
	e.eventually("no GPU has memory for pod "+name, func() (bool, string) {
		for _, n := range e.inspect().Nodes {
			for _, g := range n.GPUs {
				if slices.ContainsFunc(g.Pods, func(p struct{ Namespace, Name string }) bool { return p.Namespace == e.namespace && p.Name == name }) {
					return false, g.UUID
				}
			}
		}
		return true, ""
	})
}

// failed waits until the kubelet has refused a pod with these words.
func (e *env) failed(name, words string) {
	e.Helper()
	e.eventually("the kubelet has refused pod "+name, func() (bool, string) {
		status := e.get(name).Status
		return status.Phase == v1.PodFailed && strings.Contains(status.Message, words), fmt.Sprint(status.Phase, status.Message)
	})
}

// prints waits until a container has printed some words, and returns all that it has printed.
func (e *env) prints(name, container, words string) (text string) {
	e.Helper()
	e.eventually("pod "+name+" prints "+words, func() (bool, string) {
		out, err := e.client.CoreV1().Pods(e.namespace).GetLogs(name, &v1.PodLogOptions{Container: container}).DoRaw(e.ctx)
		text = string(out)
		return err == nil && strings.Contains(text, words), fmt.Sprint(err, text)
	})
	return text
}

// patchAs changes one annotation of a pod.
func (e *env) patchAs(client kubernetes.Interface, name, key, value string, subresources ...string) error {
	_, err := client.CoreV1().Pods(e.namespace).Patch(e.ctx, name, types.MergePatchType, annotation(key, value), metav1.PatchOptions{}, subresources...)
	return err
}

// TestAttacks tries the attacks of a tenant that need an API server, a scheduler or a node. Admission
// decides the others: test/policies has them under the same name.
func TestAttacks(t *testing.T) {
	s := newScene(t)
	before := s.books()
	for _, a := range []struct {
		name string
		try  func(*scene)
	}{
		{"write the assignment of a running pod in every way that the API server has", (*scene).writeInEveryWay},
		{"write the assignment through pods/ephemeralcontainers", func(s *scene) { s.writeThrough("ephemeralcontainers") }},
		{"write the assignment through pods/resize", func(s *scene) { s.writeThrough("resize") }},
		{"use nodeName and a forged assignment to get to an exclusive GPU of another", (*scene).bypassExclusive},
		{"use nodeName and a forged assignment to get to a cordoned GPU", (*scene).bypassCordon},
		{"use nodeName and a forged assignment to get memory that is reserved for a waiting pod", (*scene).bypassReservation},
		{"reserve a GPU for a pod of one's own, by the status that it is created with", (*scene).reserveAtCreation},
		{"reserve a GPU for a pod of one's own, by pods/status and by a status in a patch of the pod", (*scene).reserveByStatus},
		{"forge an assignment in a loop, to fail another's Job", (*scene).forgeInALoop},
		{"see all GPUs, by a ConfigMap of the container with the GPU memory (envFrom)", func(s *scene) { s.setFromConfigMap("main", "") }},
		{"see all GPUs, by a ConfigMap of a sidecar (envFrom)", func(s *scene) { s.setFromConfigMap("side", "void") }},
		{"stop the scheduler with an amount of 1e999999", (*scene).requestTooMuch},
		{"keep the victim off GPUs by the name of its exclusive-group", (*scene).takeGroup},
		{"flood the scheduler's metrics, from a pod", (*scene).flood},
		{"report the usage of other pods, as a device plugin of one's own", (*scene).fakePlugin},
	} {
		s.try(a.name, a.try)
	}
	s.testRights()
	s.testPorts()
	s.try("all of these together: the allocated units are as before", func(s *scene) {
		s.eventually("the allocated units are as before", func() (bool, string) {
			now := s.books()
			return maps.EqualFunc(now, before, maps.Equal), fmt.Sprint(now, ", before ", before)
		})
	})
}

// TestAttacksOnOtherInstallations needs other values of the chart.
func TestAttacksOnOtherInstallations(t *testing.T) {
	s := newScene(t)
	m := newMachine(s.env)
	stop := m.startMPS()
	m.level("mps", "")
	for _, a := range []struct {
		name, prints, want string
		does               func(*v1.Pod)
	}{
		{"end the MPS daemon of others, by removing its socket", "remove:", "read-only file system", doing("-remove=/run/gpumem/mps/pipe/control")},
		{"fill the node's memory by /dev/shm at the level mps", "fill:", "no space left on device", doing("-fill=/dev/shm/big")},
	} {
		s.try(a.name, func(s *scene) {
			s.must(s.createAs(s.tenant, s.pod("at-mps", 1, onNode("node1"), annotated("enforcement", "mps"), a.does)))
			if text := s.prints("at-mps", "main", a.prints); !strings.Contains(text, a.want) {
				s.Errorf("it prints %s, want %q", text, a.want)
			}
			s.remove("at-mps")
			m.level("mps", "")
		})
	}
	stop()
	m.level("advisory", "")
	s.upgrade("devicePlugin.unassigned=refuse")
	s.try("bypass devicePlugin.unassigned=refuse by nodeName and a forged assignment", func(s *scene) {
		s.bypass("bypasses", s.own)
		s.failed("bypasses", "")
		s.remove("bypasses")
	})
}

// writeInEveryWay writes the assignment of the running pod. The same write of another key succeeds.
func (s *scene) writeInEveryWay() {
	pods := s.tenant.CoreV1().Pods(s.namespace)
	kubectl := func(verb string) func(key, value string) error {
		return func(key, value string) error {
			_, err := s.kubectl("--as=editor", verb, "--overwrite", "pod", "mine", key+"="+value)
			return err
		}
	}
	jsonPatch := func(op string) func(key, value string) error {
		return func(key, value string) error {
			body := fmt.Sprintf(`[{"op":%q,"path":"/metadata/annotations/%s","value":%q}]`, op, strings.ReplaceAll(key, "/", "~1"), value)
			_, err := pods.Patch(s.ctx, "mine", types.JSONPatchType, []byte(body), metav1.PatchOptions{})
			return err
		}
	}
	for _, way := range []struct {
		name  string
		write func(key, value string) error
	}{
		{"kubectl annotate", kubectl("annotate")},
		{"kubectl label", kubectl("label")},
		{"merge patch", func(key, value string) error { return s.patchAs(s.tenant, "mine", key, value) }},
		{"status", func(key, value string) error { return s.patchAs(s.controller, "mine", key, value, "status") }},
		{"server-side apply", func(key, value string) error {
			body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "mine", "annotations": map[string]string{key: value}}})
			s.must(err)
			_, err = pods.Patch(s.ctx, "mine", types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: attacker, Force: new(true)})
			return err
		}},
		{"update", func(key, value string) error {
			return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
				pod := s.get("mine")
				pod.Annotations[key] = value
				_, err := pods.Update(s.ctx, pod, metav1.UpdateOptions{})
				return err
			})
		}},
		{"JSON patch", jsonPatch("add")},
		{"JSON patch that removes it", jsonPatch("remove")},
	} {
		if err := way.write("example.com/control", "x"); err != nil {
			s.Errorf("%s: the harmless write fails: %v", way.name, err)
		}
		value := allocated(2, s.alone)
		if way.name == "kubectl label" {
			value = "x"
		}
		s.refused(way.write(assignment, value), refusedOnANode)
	}
}

// writeThrough writes by a subresource that ignores the metadata.
func (s *scene) writeThrough(subresource string) {
	before := s.get("mine").Annotations[assignment]
	if err := s.patchAs(s.controller, "mine", assignment, allocated(2, s.alone), subresource); apierrors.IsForbidden(err) {
		s.Fatalf("the account has no right to try: %v", err)
	}
	if after := s.get("mine").Annotations[assignment]; after != before {
		s.Errorf("it was written: %s", after)
	}
}

// bypass creates a pod on the node, without a scheduler. With a forged assignment the API server refuses
// it, also once the pod exists.
func (s *scene) bypass(name, uuid string) {
	s.Helper()
	lie := allocated(1, uuid)
	s.refused(s.createAs(s.tenant, s.pod(name, 1, placed, annotated("assignment", lie))), refusedAtCreation)
	s.must(s.createAs(s.tenant, s.pod(name, 1, placed)))
	if err := s.patchAs(s.tenant, name, assignment, lie); err == nil {
		s.Error("it was written once the pod existed")
	}
}

func (s *scene) bypassExclusive() {
	s.bypass("next-to", s.alone)
	s.running("next-to")
	if got := s.agree("next-to", "main"); got[0] != s.own {
		s.Errorf("the pod is on %s, want it on %s", got, s.own)
	}
	s.remove("next-to")
}

func (s *scene) bypassCordon() {
	_, err := suite.stack.Inspect(s.ctx, s.cluster, "cordon", "node1", s.own)
	s.must(err)
	s.bypass("cordoned", s.own)
	s.failed("cordoned", "cordoned")
	_, err = suite.stack.Inspect(s.ctx, s.cluster, "uncordon", "node1", s.own)
	s.must(err)
	s.remove("cordoned")
	s.must(s.createAs(s.tenant, s.pod("uncordoned", 1, placed)))
	s.running("uncordoned")
	s.remove("uncordoned")
}

// reservation is a condition that reserves the tenant's GPU, as kubectl inspect gpumem defrag writes it.
func (s *scene) reservation() v1.PodCondition {
	return v1.PodCondition{
		Type: "GPUMemoryRoomMade", Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(),
		Message: fmt.Sprintf(`{"v":1,"node":"node1","gpus":[%q]}`, s.own),
	}
}

func (s *scene) reservationPatch() []byte {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []v1.PodCondition{s.reservation()}}})
	s.must(err)
	return body
}

func (s *scene) bypassReservation() {
	s.victim.create(s.victim.pod("planned", 12, gated))
	_, err := s.client.CoreV1().Pods(s.victim.namespace).Patch(s.ctx, "planned", types.StrategicMergePatchType, s.reservationPatch(), metav1.PatchOptions{}, "status")
	s.must(err)
	s.refused(s.createAs(s.tenant, s.pod("takes", 1, placed, annotated("assignment", allocated(1, s.own)))), refusedAtCreation)
	s.must(s.createAs(s.tenant, s.pod("asks", 2, onNode("node1"), annotated("gpu-uuid", s.own))))
	s.pending("asks", "reserved for pods nominated")
	s.remove("asks")
	s.victim.remove("planned")
}

// reservesNothing checks that the status of a pod of the tenant has no reservation.
func (s *scene) reservesNothing(name string) {
	s.Helper()
	status := s.get(name).Status
	forged := s.reservation().Type
	if status.NominatedNodeName != "" || slices.ContainsFunc(status.Conditions, func(c v1.PodCondition) bool { return c.Type == forged }) {
		s.Errorf("a GPU is reserved for pod %s: %+v", name, status)
	}
}

func (s *scene) reserveAtCreation() {
	forged := s.reservation()
	pod := s.pod("reserves", 1, gated, annotated(string(forged.Type), forged.Message))
	pod.Status = v1.PodStatus{NominatedNodeName: "node1", Conditions: []v1.PodCondition{forged}}
	s.must(s.createAs(s.tenant, pod))
	s.reservesNothing("reserves")
	s.remove("reserves")
}

func (s *scene) reserveByStatus() {
	pods := s.tenant.CoreV1().Pods(s.namespace)
	_, err := pods.Patch(s.ctx, "waits", types.StrategicMergePatchType, s.reservationPatch(), metav1.PatchOptions{})
	s.must(err) // the API server ignores the status
	_, byPatch := pods.Patch(s.ctx, "waits", types.StrategicMergePatchType, s.reservationPatch(), metav1.PatchOptions{}, "status")
	waits := s.get("waits")
	waits.Status.Conditions = append(waits.Status.Conditions, s.reservation())
	_, byUpdate := pods.UpdateStatus(s.ctx, waits, metav1.UpdateOptions{})
	for _, err := range []error{byPatch, byUpdate} {
		if !apierrors.IsForbidden(err) {
			s.Errorf("pods/status is not forbidden: %v", err)
		}
	}
	s.reservesNothing("waits")
}

// forgeInALoop forges while a Job of the victim runs.
func (s *scene) forgeInALoop() {
	jobs := s.client.BatchV1().Jobs(s.victim.namespace)
	_, err := jobs.Create(s.ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec:       batchv1.JobSpec{Completions: new(int32(5)), Parallelism: new(int32(2)), Template: v1.PodTemplateSpec{Spec: s.pod("", 1, onNode("node1"), doing("-exit-after=10ms")).Spec}},
	}, metav1.CreateOptions{})
	s.must(err)
	forging, stop := context.WithCancel(s.ctx)
	done := make(chan struct{})
	var tried, passed atomic.Int64
	go func() {
		defer close(done)
		for i := 0; forging.Err() == nil; i++ {
			lie := annotation(assignment, allocated(14, []string{s.own, s.alone}[i%2]))
			_, err := s.tenant.CoreV1().Pods(s.namespace).Patch(forging, "mine", types.MergePatchType, lie, metav1.PatchOptions{})
			if forging.Err() == nil {
				tried.Add(1)
			}
			if err == nil {
				passed.Add(1)
			}
		}
	}()
	defer func() { stop(); <-done }()
	var job *batchv1.Job
	s.eventually("the job is complete", func() (bool, string) {
		job, err = jobs.Get(s.ctx, "job", metav1.GetOptions{})
		return err == nil && job.Status.CompletionTime != nil, fmt.Sprint(err, job)
	})
	if passed.Load() > 0 || tried.Load() == 0 || job.Status.Failed > 0 {
		s.Errorf("%d writes, %d accepted; %d pods of the Job failed", tried.Load(), passed.Load(), job.Status.Failed)
	}
}

// setFromConfigMap sets NVIDIA_VISIBLE_DEVICES of a container by a ConfigMap. The container gets the value
// want instead; if want is empty, the runtime does not create it.
func (s *scene) setFromConfigMap(container, want string) {
	_, err := s.tenant.CoreV1().ConfigMaps(s.namespace).Create(s.ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Data: map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.Fatal(err)
	}
	name := "env-of-" + container
	pod := s.pod(name, 1, onNode("node1"))
	pod.Spec.Containers = append(pod.Spec.Containers, sample("side", 0))
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == container {
			pod.Spec.Containers[i].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "gpus"}}}}
		}
	}
	s.must(s.createAs(s.tenant, pod))
	if want != "" {
		if text := s.prints(name, container, "NVIDIA_VISIBLE_DEVICES="); !strings.Contains(text, "NVIDIA_VISIBLE_DEVICES="+want+"\n") {
			s.Errorf("the container has %s, want %s", text, want)
		}
	} else {
		s.eventually("the container is not created", func() (bool, string) {
			statuses := s.get(name).Status.ContainerStatuses
			return slices.ContainsFunc(statuses, func(c v1.ContainerStatus) bool {
				return c.Name == container && c.State.Waiting != nil && c.State.Waiting.Reason == "CreateContainerError"
			}), fmt.Sprint(statuses)
		})
	}
	s.remove(name)
}

// requestTooMuch sends the text of the amount: a client would compute the number.
func (s *scene) requestTooMuch() {
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"enormous","namespace":%q},"spec":{"schedulerName":"gpumem-scheduler",
		"containers":[{"name":"main","image":"i","resources":{"limits":{"gpumem.dev/gpu-mem":"1e999999"}}}]}}`, s.namespace)
	sent := s.tenant.CoreV1().RESTClient().Post().Namespace(s.namespace).Resource("pods").Body([]byte(body)).SetHeader("Content-Type", "application/json").Do(s.ctx).Error()
	s.must(s.createAs(s.tenant, s.pod("after", 1, onNode("node1"))))
	s.running("after")
	s.remove("after")
	if sent == nil {
		s.remove("enormous")
	}
}

// takeGroup uses an exclusive-group. The group of the same name in another namespace is another one.
func (s *scene) takeGroup() {
	prod := annotated("exclusive-group", "prod")
	s.must(s.createAs(s.tenant, s.pod("first", 1, onNode("node1"), prod)))
	s.running("first")
	s.must(s.createAs(s.tenant, s.pod("second", 1, onNode("node1"), prod)))
	s.pending("second", `apart from exclusive-group "prod"`)
	s.victim.create(s.victim.pod("prod", 1, onNode("node1"), prod))
	s.victim.running("prod")
	s.victim.remove("prod")
	s.remove("second")
	s.remove("first")
}

// flood sends 256 requests at a time while pods start.
func (s *scene) flood() {
	const mostMiB = 512
	s.must(s.createAs(s.tenant, s.pod("floods", 0, doing("-flood=http://"+s.addressOf("scheduler")+":8011/metrics"), func(pod *v1.Pod) { pod.Spec.NodeName = "node2" })))
	s.prints("floods", "main", "flood:")
	for i := range 3 {
		name := fmt.Sprint("meanwhile-", i)
		s.must(s.createAs(s.tenant, s.pod(name, 1, onNode("node1"))))
		s.running(name)
		s.remove(name)
	}
	processes, err := s.cluster.ContainerProcesses(suite.stack.Decider())
	if err != nil || len(processes) == 0 {
		s.Fatalf("processes of the scheduler: %v, %v", processes, err)
	}
	for _, p := range processes {
		if mib, err := cluster.PeakMemory(p.PID); err != nil || mib > mostMiB {
			s.Errorf("%s had %.0f MiB of memory, want %d MiB at most: %v", p.Program, mib, mostMiB, err)
		}
	}
	s.remove("floods")
}

// fakePlugin is a pod with the labels of gpumem's device plugin. It reports usage of the victim's pod.
func (s *scene) fakePlugin() {
	plugins, err := s.client.CoreV1().Pods(stack.Namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=device-plugin"})
	s.must(err)
	const usedMiB = 84771
	text := fmt.Sprintf("# TYPE gpumem_device_plugin_container_memory_used_bytes gauge\n"+
		"gpumem_device_plugin_container_memory_used_bytes{namespace=%q,pod=\"alone\",container=\"main\",uuid=%q} %d\n", s.victim.namespace, s.alone, usedMiB<<20)
	pod := s.pod("fake", 0, placed, doing("-serve=:8012", "-text="+text))
	pod.Labels = maps.Clone(plugins.Items[0].Labels)
	delete(pod.Labels, "controller-revision-hash")
	delete(pod.Labels, "pod-template-generation")
	pod.Spec.Containers[0].Ports = plugins.Items[0].Spec.Containers[0].Ports
	s.must(s.createAs(s.tenant, pod))
	s.eventually("it answers like a device plugin", func() (bool, string) {
		got, err := s.client.CoreV1().Pods(s.namespace).ProxyGet("http", "fake", "8012", "/metrics", nil).DoRaw(s.ctx)
		return err == nil && strings.Contains(string(got), fmt.Sprint(usedMiB<<20)), fmt.Sprint(err, string(got))
	})
	top, err := suite.stack.Inspect(s.ctx, s.cluster, "top")
	if err != nil || !strings.Contains(top, "alone") || strings.Contains(top, fmt.Sprint(usedMiB)) {
		s.Errorf("kubectl inspect gpumem top: %v\n%s\nwant the victim's pod, without the usage %d", err, top, usedMiB)
	}
	s.remove("fake")
}

// testRights asks the API server whether RBAC allows each write.
func (s *scene) testRights() {
	allowed := func(e *env, user, verb, group, resource, namespace string) bool {
		resource, subresource, _ := strings.Cut(resource, "/")
		review, err := e.client.AuthorizationV1().SubjectAccessReviews().Create(e.ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: []string{"system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: subresource, Namespace: namespace},
		}}, metav1.CreateOptions{})
		e.must(err)
		return review.Status.Allowed
	}
	const editor, plugin = "editor", "system:serviceaccount:" + stack.Namespace + ":gpumem-device-plugin"
	if !allowed(s.env, editor, "patch", "", "pods", s.namespace) || !allowed(s.env, plugin, "patch", "", "pods", s.namespace) {
		s.Error("the attackers may not even patch pods")
	}
	for _, a := range []struct{ name, who, verb, group, resource, namespace string }{
		{"bind a pod to a node", editor, "create", "", "pods/binding", s.namespace},
		{"write a pod's status without the right to it", editor, "patch", "", "pods/status", s.namespace},
		{"write an inventory", editor, "patch", "", "nodes", ""},
		{"cordon a GPU", editor, "update", "", "nodes", ""},
		{"change the victim's pod", editor, "patch", "", "pods", s.victim.namespace},
		{"evict the victim's pod", editor, "create", "", "pods/eviction", s.victim.namespace},
		{"read gpumem's Secrets", editor, "list", "", "secrets", stack.Namespace},
		{"take the scheduler's Lease", editor, "patch", "coordination.k8s.io", "leases", stack.Namespace},
		{"forward a port to the scheduler", editor, "create", "", "pods/portforward", stack.Namespace},
		{"get a token of the device plugin's account", editor, "create", "", "serviceaccounts/token", stack.Namespace},
		{"remove a policy", editor, "delete", "admissionregistration.k8s.io", "validatingadmissionpolicies", ""},
		{"with a plugin's token, write a pod's status", plugin, "patch", "", "pods/status", s.namespace},
	} {
		s.try(a.name, func(s *scene) {
			if allowed(s.env, a.who, a.verb, a.group, a.resource, a.namespace) {
				s.Errorf("%s may %s %s in namespace %q", a.who, a.verb, a.resource, a.namespace)
			}
		})
	}
}

// testPorts fetches URLs of gpumem from one pod of the tenant.
func (s *scene) testPorts() {
	scheduler, plugin := s.addressOf("scheduler"), s.addressOf("device-plugin")
	open := "http://" + scheduler + ":8011/metrics"
	attacks := []struct{ name, url, want string }{
		{"bind by the extender's own port, from a pod", "http://" + scheduler + ":8010/bind", "connection refused"},
		{"call the extender's filter, from a pod", "http://" + scheduler + ":8010/filter", "connection refused"},
		{"read decisions about others, from a pod", "http://" + scheduler + ":8013/api/v1/decisions", "connection refused"},
		{"bind by the port of the metrics, from a pod", "http://" + scheduler + ":8011/bind", " 404 "},
		{"filter by the port of the metrics, from a pod", "http://" + scheduler + ":8011/filter", " 404 "},
		{"read decisions by the port of the metrics, from a pod", "http://" + scheduler + ":8011/api/v1/decisions", " 404 "},
		{"read the scheduler's memory, from a pod", "http://" + scheduler + ":8011/debug/pprof/heap", " 404 "},
		{"read the device plugin's memory, from a pod", "http://" + plugin + ":8012/debug/pprof/", " 404 "},
		{"read kube-scheduler's metrics, from a pod", "https://" + scheduler + ":10259/metrics", " 403 "},
	}
	var args []string
	for _, a := range attacks {
		args = append(args, "-get="+a.url)
	}
	s.must(s.createAs(s.tenant, s.pod("fetches", 0, placed, doing(append(args, "-get="+open)...))))
	lines := strings.Split(s.prints("fetches", "main", open), "\n")
	result := func(url string) string {
		for _, line := range lines {
			if strings.HasPrefix(line, "get:") && strings.Contains(line, url) {
				return line
			}
		}
		return "nothing was printed for " + url
	}
	if got := result(open); !strings.Contains(got, " 200 ") {
		s.Errorf("the open port cannot be reached either: %s", got)
	}
	for _, a := range attacks {
		s.try(a.name, func(s *scene) {
			if got := result(a.url); !strings.Contains(got, a.want) {
				s.Errorf("%s, want %q", got, a.want)
			}
		})
	}
	s.remove("fetches")
}

// addressOf returns the address of one of gpumem's pods.
func (e *env) addressOf(component string) string {
	e.Helper()
	pods, err := e.client.CoreV1().Pods(stack.Namespace).List(e.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	if err != nil || len(pods.Items) == 0 {
		e.Fatalf("pods of %s: %v, %v", component, pods, err)
	}
	return pods.Items[0].Status.PodIP
}

// bindRole gives a user a role in the test's namespace.
func (e *env) bindRole(user, kind, role string) {
	e.Helper()
	_, err := e.client.RbacV1().RoleBindings(e.namespace).Create(e.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}, metav1.CreateOptions{})
	e.must(err)
}

// asEditor returns a client with the rights of the role "edit" in the test's namespace.
func (e *env) asEditor() kubernetes.Interface {
	e.Helper()
	e.bindRole("editor", "ClusterRole", "edit")
	return e.as("editor")
}

// as returns a client of a user.
func (e *env) as(user string) kubernetes.Interface {
	e.Helper()
	config, err := e.cluster.RESTConfig()
	e.must(err)
	config.Impersonate, config.UserAgent = rest.ImpersonationConfig{UserName: user}, attacker
	client, err := kubernetes.NewForConfig(config)
	e.must(err)
	return client
}

func (e *env) createAs(client kubernetes.Interface, pod *v1.Pod) error {
	_, err := client.CoreV1().Pods(e.namespace).Create(e.ctx, pod, metav1.CreateOptions{})
	return err
}
