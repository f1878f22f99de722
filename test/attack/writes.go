package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// What the API server says of pods that are created, wait and have a node.
const (
	atCreation = "is written by gpumem when it places the pod"
	unplaced   = "is written by gpumem alone"
	settled    = "of a pod that has a node does not change any more"
)

// lie is an assignment of units on GPUs.
func lie(units int, uuids ...string) string {
	type one struct {
		UUID  string `json:"uuid"`
		Index int    `json:"index"`
		Units int    `json:"units"`
	}
	var gpus []one
	for i, uuid := range uuids {
		gpus = append(gpus, one{uuid, i, units})
	}
	text, _ := json.Marshal(map[string]any{"v": 1, "unitMiB": 1024, "enforcement": "advisory", "gpus": gpus})
	return string(text)
}

// A write sets a key of the metadata of something.
type write func(ctx context.Context, f *field, key, value string) error

// refused sees that a write is refused with some words, and that the same write of a key
// that is not gpumem's passes.
func refused(ctx context.Context, f *field, do write, key, value, want string) (string, error) {
	if err := do(ctx, f, "example.com/control", "x"); err != nil {
		return "", fmt.Errorf("the same write of another key fails: %w", err)
	}
	return failsWith(do(ctx, f, domain+key, value), want)
}

// failsWith sees that an error is there and has some words.
func failsWith(err error, want string) (string, error) {
	switch {
	case err == nil:
		return "", errors.New("it was taken")
	case !strings.Contains(err.Error(), want):
		return "", fmt.Errorf("it fails for another reason than %q: %w", want, err)
	}
	_, said, _ := strings.Cut(err.Error(), "denied request: ")
	if said == "" {
		said = err.Error()
	}
	return "refused: " + said, nil
}

func annotate(pod string) write {
	return func(ctx context.Context, f *field, key, value string) error {
		return f.kubectl(ctx, f.dev, "annotate", "--overwrite", "pod", pod, key+"="+value)
	}
}

func label(pod string) write {
	return func(ctx context.Context, f *field, key, value string) error {
		return f.kubectl(ctx, f.dev, "label", "--overwrite", "pod", pod, key+"="+value)
	}
}

// patched is a merge patch; by the status it is the controller's, which may.
func patched(pod string, subresources ...string) write {
	return func(ctx context.Context, f *field, key, value string) error {
		as := f.dev
		if len(subresources) > 0 {
			as = f.controller
		}
		return patch(ctx, as, f.mine+"/"+pod, key, value, subresources...)
	}
}

// applied is a server-side apply, with force.
func applied(pod string) write {
	return func(ctx context.Context, f *field, key, value string) error {
		body, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": pod, "annotations": map[string]string{key: value}},
		})
		if err != nil {
			return err
		}
		_, err = f.dev.CoreV1().Pods(f.mine).Patch(ctx, pod, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "attacker", Force: new(true)})
		return err
	}
}

// replaced is an update of the whole object. It is tried again where somebody else, as the
// kubelet, changed the object since it was read.
func replaced(pod string) write {
	return func(ctx context.Context, f *field, key, value string) error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			now, err := f.dev.CoreV1().Pods(f.mine).Get(ctx, pod, metav1.GetOptions{})
			if err != nil {
				return err
			}
			now.Annotations[key] = value
			_, err = f.dev.CoreV1().Pods(f.mine).Update(ctx, now, metav1.UpdateOptions{})
			return err
		})
	}
}

// created is a pod with the annotation, as far as the API server goes before it stores it.
func created(change ...func(*v1.Pod)) write {
	return func(ctx context.Context, f *field, key, value string) error {
		pod := f.pod("created", 1, change...)
		pod.Annotations[key] = value
		return dryRun(ctx, f.dev, pod)
	}
}

// writes are attacks by what is written of pods.
func writes() []attempt {
	on := func(do write, key, value, want string) func(context.Context, *field) (string, error) {
		return func(ctx context.Context, f *field) (string, error) { return refused(ctx, f, do, key, value, want) }
	}
	assignment := func(do write, value func(*field) string, want string) func(context.Context, *field) (string, error) {
		return func(ctx context.Context, f *field) (string, error) {
			return refused(ctx, f, do, "assignment", value(f), want)
		}
	}
	both := func(f *field) string { return lie(1, f.own, f.alone) }
	other := func(f *field) string { return lie(2, f.alone) }
	leaving := func(f *field) string {
		return strings.TrimSuffix(lie(2, f.own), "}") + fmt.Sprintf(`,"leaving":[%q]}`, f.alone)
	}
	return []attempt{
		{"count for half, by gpu-count of a running pod (kubectl annotate)", on(annotate("mine"), "gpu-count", "2", settled)},
		{"count for half, by the assignment of a running pod (kubectl annotate)", assignment(annotate("mine"), both, settled)},
		{"count on another's GPU, by the assignment of a running pod (merge patch)", assignment(patched("mine"), other, settled)},
		{"count on another's GPU as well, by a forged leaving (server-side apply)", assignment(applied("mine"), leaving, settled)},
		{"count nowhere, by an assignment that is empty (update of the object)", on(replaced("mine"), "assignment", "", settled)},
		{"close a GPU, by the policy exclusive of a running pod", on(patched("mine"), "policy", "exclusive", settled)},
		{"close a GPU, by a policy that cannot be read", on(applied("mine"), "policy", "", settled)},
		{"keep others away, by an exclusive-group of a running pod", on(replaced("mine"), "exclusive-group", "prod", settled)},
		{"ask for other GPUs once placed", on(annotate("mine"), "gpu-uuid", "GPU-none", settled)},
		{"write a label of the domain on a running pod (kubectl label)", on(label("mine"), "assignment", "x", settled)},
		{"write the assignment of a running pod by its status, with a right to that in the namespace", assignment(patched("mine", "status"), other, settled)},
		{"write gpu-count of a running pod by its status, with a right to that in the namespace", on(patched("mine", "status"), "gpu-count", "2", settled)},
		{"choose a GPU, by the assignment of a pod that waits", assignment(annotate("waits"), other, unplaced)},
		{"choose a GPU, by the assignment of a pod that waits, through its status", assignment(patched("waits", "status"), other, unplaced)},
		{"choose a GPU, by the assignment of a gated pod", assignment(applied("gated"), other, unplaced)},
		{"choose a GPU, by the index of a gated pod", on(patched("gated"), "gpu-index", "0", unplaced)},
		{"be tried again at will, by room-made of a pod that waits", on(patched("waits"), "room-made", "now", unplaced)},
		{"create a pod with an assignment", assignment(created(), other, atCreation)},
		{"create a gated pod with an assignment", assignment(created(gated), other, atCreation)},
		{"create a pod with an index", on(created(), "gpu-index", "0", atCreation)},
		{"make pods with an assignment by a Deployment", deployment},
		{"write the assignment through pods/ephemeralcontainers", through("ephemeralcontainers")},
		{"write the assignment through pods/resize", through("resize")},
		{"take the annotations of a running pod away (JSON patch)", takenAway},
		{"use nodeName and a forged assignment to come to a GPU that another has alone", nextToAlone},
		{"use nodeName and a forged assignment to come to a cordoned GPU", cordoned},
		{"use nodeName and a forged assignment to take what is kept for a pod that waits", kept},
		{"reserve a GPU for a pod of one's own, by the status and the annotations that it is created with", reservedAtCreation},
		{"reserve a GPU for a pod of one's own, by pods/status and by a status in a patch of the pod", reservedByStatus},
		{"forge an assignment in a loop, to fail another's Job", loop},
	}
}

func deployment(ctx context.Context, f *field) (string, error) {
	labels := map[string]string{"app": "forged"}
	template := f.pod("", 1, onNode(node), annotated("assignment", lie(1, f.alone)))
	_, err := f.dev.AppsV1().Deployments(f.mine).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "forged"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: template.Annotations}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	var said string
	err = f.until(ctx, "the deployment says why it has no pods", func(ctx context.Context) (bool, string) {
		d, err := f.dev.AppsV1().Deployments(f.mine).Get(ctx, "forged", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure {
				said = c.Message
			}
		}
		return said != "", fmt.Sprint(d.Status)
	})
	if err == nil {
		err = f.dev.AppsV1().Deployments(f.mine).Delete(ctx, "forged", metav1.DeleteOptions{})
	}
	if err != nil {
		return "", err
	}
	return failsWith(errors.New(said), atCreation)
}

// through tries subresources that leave the metadata as it is, whatever is sent.
func through(subresource string) func(context.Context, *field) (string, error) {
	return func(ctx context.Context, f *field) (string, error) {
		before, err := f.dev.CoreV1().Pods(f.mine).Get(ctx, "mine", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		err = patch(ctx, f.controller, f.mine+"/mine", domain+"assignment", lie(2, f.alone), subresource)
		if apierrors.IsForbidden(err) {
			return "", fmt.Errorf("it has no right to try: %w", err)
		}
		after, getErr := f.dev.CoreV1().Pods(f.mine).Get(ctx, "mine", metav1.GetOptions{})
		if getErr != nil {
			return "", getErr
		}
		if before.Annotations[domain+"assignment"] != after.Annotations[domain+"assignment"] {
			return "", fmt.Errorf("it was written: %s", after.Annotations[domain+"assignment"])
		}
		return fmt.Sprintf("the assignment is as it was; the API server's error: %v", err), nil
	}
}

func takenAway(ctx context.Context, f *field) (string, error) {
	remove := func(key string) error {
		body := fmt.Sprintf(`[{"op":"remove","path":"/metadata/annotations/%s"}]`, strings.ReplaceAll(key, "/", "~1"))
		_, err := f.dev.CoreV1().Pods(f.mine).Patch(ctx, "mine", types.JSONPatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	if err := patched("mine")(ctx, f, "example.com/control", "x"); err != nil {
		return "", err
	}
	if err := remove("example.com/control"); err != nil {
		return "", fmt.Errorf("the same patch of another key fails: %w", err)
	}
	return failsWith(remove(domain+"assignment"), settled)
}

// bypass creates a pod on the node with a forged assignment, which has to be refused, and
// then without, and forges it once the pod is there.
func (f *field) bypass(ctx context.Context, name, uuid string) (string, error) {
	forged := f.pod(name, 1, placed(node), annotated("assignment", lie(1, uuid)))
	said, err := failsWith(create(ctx, f.dev, forged), atCreation)
	if err != nil {
		return "", err
	}
	if err := create(ctx, f.dev, f.pod(name, 1, placed(node))); err != nil {
		return "", fmt.Errorf("without the assignment it fails too: %w", err)
	}
	if err := patch(ctx, f.dev, f.mine+"/"+name, domain+"assignment", lie(1, uuid)); err == nil {
		return "", errors.New("it was written once the pod was there")
	}
	return said, nil
}

func nextToAlone(ctx context.Context, f *field) (string, error) {
	said, err := f.bypass(ctx, "next-to", f.alone)
	if err == nil {
		err = f.runs(ctx, f.mine, "next-to")
	}
	if err != nil {
		return "", err
	}
	// What the plugin has chosen it writes a moment later.
	err = f.until(ctx, "the pod has the other GPU", func(ctx context.Context) (bool, string) {
		on, err := f.podsOf(ctx, node)
		return err == nil && len(on[f.alone]) == 1 && slices.Contains(on[f.own], f.mine+"/next-to"), fmt.Sprint(on, err)
	})
	if err != nil {
		return "", err
	}
	return said + "; without, it has another GPU", f.end(ctx, "next-to")
}

func cordoned(ctx context.Context, f *field) (string, error) {
	if _, err := f.Stack.Inspect(ctx, f.Cluster, "cordon", node, f.own); err != nil {
		return "", err
	}
	said, err := f.bypass(ctx, "cordoned", f.own)
	if err == nil {
		err = f.podUntil(ctx, "the kubelet has refused the pod", f.mine, "cordoned", func(pod *v1.Pod) (bool, string) {
			if pod.Status.Phase != v1.PodFailed || !strings.Contains(pod.Status.Message, "cordoned") {
				return false, fmt.Sprint(pod.Status.Phase, pod.Status.Message)
			}
			said += "; without: " + pod.Status.Message
			return true, ""
		})
	}
	_, undo := f.Stack.Inspect(ctx, f.Cluster, "uncordon", node, f.own)
	if err := errors.Join(err, undo); err != nil {
		return "", err
	}
	if err := f.end(ctx, "cordoned"); err != nil {
		return "", err
	}
	// Were it not for the cordon, it would run.
	if err := f.start(ctx, f.dev, f.pod("uncordoned", 1, placed(node))); err != nil {
		return "", err
	}
	return said, f.end(ctx, "uncordoned")
}

// reservation is the condition by which kubectl inspect gpumem defrag keeps the attacker's GPU for
// a pod.
func reservation(f *field) v1.PodCondition {
	return v1.PodCondition{Type: "GPUMemoryRoomMade", Status: v1.ConditionTrue, Message: fmt.Sprintf(`{"v":1,"node":%q,"gpus":[%q]}`, node, f.own)}
}

// withReservation is a patch of a pod that writes it.
func withReservation(f *field) ([]byte, error) {
	return json.Marshal(map[string]any{"status": map[string]any{"conditions": []v1.PodCondition{reservation(f)}}})
}

// notReserved sees that nothing is kept for a pod of the attacker's.
func notReserved(ctx context.Context, f *field, name string) error {
	pod, err := f.admin.CoreV1().Pods(f.mine).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	forged := reservation(f).Type
	if pod.Status.NominatedNodeName != "" || slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == forged }) {
		return fmt.Errorf("a GPU is kept for pod %s: %+v", name, pod.Status)
	}
	return nil
}

func reservedAtCreation(ctx context.Context, f *field) (string, error) {
	forged := reservation(f)
	said, err := refused(ctx, f, created(gated), "room-made", forged.Message, atCreation)
	if err != nil {
		return "", err
	}
	pod := f.pod("reserves", 1, gated, annotated(string(forged.Type), forged.Message))
	pod.Status = v1.PodStatus{NominatedNodeName: node, Conditions: []v1.PodCondition{forged}}
	if err := create(ctx, f.dev, pod); err != nil {
		return "", fmt.Errorf("with a status alone it fails too: %w", err)
	}
	if err := notReserved(ctx, f, "reserves"); err != nil {
		return "", err
	}
	return said + "; of a status at creation nothing is taken", f.end(ctx, "reserves")
}

func reservedByStatus(ctx context.Context, f *field) (string, error) {
	body, err := withReservation(f)
	if err != nil {
		return "", err
	}
	pods := f.dev.CoreV1().Pods(f.mine)
	// The patch of the pod passes, and leaves the status as it is.
	if _, err := pods.Patch(ctx, "waits", types.StrategicMergePatchType, body, metav1.PatchOptions{}); err != nil {
		return "", fmt.Errorf("the same patch of the pod fails: %w", err)
	}
	_, byPatch := pods.Patch(ctx, "waits", types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	waits, err := pods.Get(ctx, "waits", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	waits.Status.Conditions = append(waits.Status.Conditions, reservation(f))
	_, byUpdate := pods.UpdateStatus(ctx, waits, metav1.UpdateOptions{})
	for _, err := range []error{byPatch, byUpdate} {
		if !apierrors.IsForbidden(err) {
			return "", fmt.Errorf("pods/status is not forbidden: %w", err)
		}
	}
	return fmt.Sprintf("a patch of the pod changes no status; refused: %v", byPatch), notReserved(ctx, f, "waits")
}

// kept keeps a GPU's room for a pod of the victim's, as kubectl inspect gpumem defrag does.
func kept(ctx context.Context, f *field) (string, error) {
	pod := f.pod("planned", 12, gated)
	pod.Namespace = f.hers
	if err := create(ctx, f.admin, pod); err != nil {
		return "", err
	}
	body, err := withReservation(f)
	if err != nil {
		return "", err
	}
	if _, err := f.admin.CoreV1().Pods(f.hers).Patch(ctx, "planned", types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
		return "", err
	}
	said, err := failsWith(create(ctx, f.dev, f.pod("takes", 1, placed(node), annotated("assignment", lie(1, f.own)))), atCreation)
	if err != nil {
		return "", err
	}
	// By the scheduler it cannot come there either.
	if err := create(ctx, f.dev, f.pod("asks", 2, onNode(node), annotated("gpu-uuid", f.own))); err != nil {
		return "", err
	}
	err = f.podUntil(ctx, "the pod waits for what is kept", f.mine, "asks", func(pod *v1.Pod) (bool, string) {
		waits := func(c v1.PodCondition) bool {
			return c.Type == v1.PodScheduled && strings.Contains(c.Message, "kept for pods that are nominated")
		}
		return slices.ContainsFunc(pod.Status.Conditions, waits), fmt.Sprint(pod.Status.Conditions)
	})
	return said + "; by the scheduler it waits", errors.Join(err, f.end(ctx, "asks"), f.remove(ctx, f.hers, "planned"))
}

// loop has the attacker write all the time while a Job of the victim's runs.
func loop(ctx context.Context, f *field) (string, error) {
	pod := f.pod("", 1, onNode(node), doing("-exit-after=10ms"))
	_, err := f.admin.BatchV1().Jobs(f.hers).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec:       batchv1.JobSpec{Completions: new(int32(5)), Parallelism: new(int32(2)), Template: v1.PodTemplateSpec{Spec: pod.Spec}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	forging, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	var tried, passed atomic.Int64
	go func() {
		defer close(done)
		for i := 0; forging.Err() == nil; i++ {
			err := patch(forging, f.dev, f.mine+"/mine", domain+"assignment", lie(14, []string{f.own, f.alone}[i%2]))
			if forging.Err() == nil {
				tried.Add(1)
			}
			if err == nil {
				passed.Add(1)
			}
		}
	}()
	var job *batchv1.Job
	err = f.until(ctx, "the job is complete", func(ctx context.Context) (bool, string) {
		job, err = f.admin.BatchV1().Jobs(f.hers).Get(ctx, "job", metav1.GetOptions{})
		return err == nil && job.Status.CompletionTime != nil, fmt.Sprint(err, job)
	})
	stop()
	<-done
	seen := fmt.Sprintf("%d writes, %d taken", tried.Load(), passed.Load())
	if err == nil && (passed.Load() > 0 || tried.Load() == 0 || job.Status.Failed > 0) {
		err = fmt.Errorf("%s; pods of the Job that failed: %d", seen, job.Status.Failed)
	}
	return seen + "; no pod of the Job failed", err
}
