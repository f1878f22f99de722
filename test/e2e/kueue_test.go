package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/test/cluster"
)

const (
	kueueNamespace = "kueue-system"
	queueLabel     = "kueue.x-k8s.io/queue-name"
	queueOfSample  = "team-a"
	quotaOfSample  = 40
)

// TestKueueAdmitsByGPUMemory: Kueue, with its own chart and webhooks, lets the jobs and
// pods of the sample's queue start that have room in its quota, and the next one when
// one of them has ended. The GPUs could take them all at once.
func TestKueueAdmitsByGPUMemory(t *testing.T) {
	if suite.cluster == nil {
		t.Skip(suite.why)
	}
	kueue, err := suite.cluster.Kueue(t.Context(), os.Stderr) // minutes the first time, which no test has
	if err != nil {
		t.Fatal(err)
	}
	e := setup(t)
	e.installKueue(kueue)
	e.applySampleForKueue()
	q := *e
	q.namespace = metav1.NamespaceDefault // the sample's
	most := q.mostUnits()
	q.admitted("train", 16)
	q.jobCompletes("train")

	q.createJob("first")
	first := q.jobRuns("first")
	q.createJob("second")
	q.jobRuns("second")
	q.createJob("third")
	q.waitsForQuota("third")
	if job := q.job("third"); !*job.Spec.Suspend || len(q.podsOf("third")) > 0 {
		t.Errorf("third is suspended: %t, and has %d pods; want that it waits and has none", *job.Spec.Suspend, len(q.podsOf("third")))
	}

	// A smaller one has room yet. It is a pod alone.
	q.create(q.queued("small"))
	small := q.running("small")
	q.admitted("small", 8)
	q.agree("small", "main")
	q.givenAway(quotaOfSample)
	q.end(first...)
	q.jobCompletes("first")
	q.jobRuns("third")
	q.givenAway(quotaOfSample)

	q.create(q.queued("late"))
	q.waitsForQuota("late")
	if late := q.get("late"); len(late.Spec.SchedulingGates) == 0 || late.Spec.NodeName != "" {
		t.Errorf("late has the scheduling gates %v and the node %q, want a gate and no node", late.Spec.SchedulingGates, late.Spec.NodeName)
	}
	q.end(*small)
	q.running("late")
	q.agree("late", "main")
	q.givenAway(quotaOfSample)
	if got := most(); got != quotaOfSample {
		t.Errorf("pods that were placed had %d GiB together at one time, want the quota of %d and never more", got, quotaOfSample)
	}
}

// installKueue installs Kueue until the test ends, on the node without GPUs.
func (e *env) installKueue(kueue cluster.Kueue) {
	e.Helper()
	if err := e.cluster.LoadImage(e.ctx, kueue.Archive, withoutGPUs); err != nil {
		e.Fatal(err)
	}
	e.atEnd(func() {
		if e.Failed() {
			log, err := suite.stack.Kubectl(e.ctx, e.cluster, "logs", "--namespace", kueueNamespace, "--tail=100", "deployment/kueue-controller-manager")
			e.Logf("Kueue: %v\n%s", err, log)
		}
		if err := suite.stack.Uninstall(e.ctx, e.cluster, "kueue", kueueNamespace); err != nil {
			e.Error(err)
		}
	})
	args := []string{"install", "kueue", kueue.Chart, "--namespace", kueueNamespace, "--create-namespace"}
	for _, value := range []string{
		"controllerManager.manager.image.repository=" + kueue.Repository,
		"controllerManager.manager.image.tag=" + kueue.Tag,
		"controllerManager.manager.image.pullPolicy=Never",
		`controllerManager.nodeSelector.kubernetes\.io/hostname=` + withoutGPUs,
		"controllerManager.readinessProbe.initialDelaySeconds=1",
		"controllerManager.readinessProbe.periodSeconds=1",
	} {
		args = append(args, "--set", value)
	}
	if _, err := suite.stack.Helm(e.ctx, e.cluster, args...); err != nil {
		e.Fatal(err)
	}
	e.eventually("Kueue has made its certificate", func() (bool, string) {
		secret, err := e.client.CoreV1().Secrets(kueueNamespace).Get(e.ctx, "kueue-webhook-server-cert", metav1.GetOptions{})
		return err == nil && len(secret.Data["tls.crt"]) > 0, fmt.Sprint(err)
	})
	// A kubelet looks for what is new in a Secret once a minute, and when the pod changes.
	for _, args := range [][]string{
		{"annotate", "pods", "--all", "e2e=certificate"},
		{"rollout", "status", "deployment/kueue-controller-manager", "--timeout=2m"},
	} {
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, append(args, "--namespace", kueueNamespace)...); err != nil {
			e.Fatal(err)
		}
	}
}

// applySampleForKueue applies the sample as it stands, and takes it away at the end of
// the test with all that is in its queue.
func (e *env) applySampleForKueue() {
	e.Helper()
	sample := suite.stack.Sample("kueue.yaml")
	e.atEnd(func() {
		for _, args := range [][]string{
			{"delete", "jobs,pods", "--namespace", metav1.NamespaceDefault, "--selector", queueLabel + "=" + queueOfSample, "--timeout=1m"},
			{"delete", "--filename", sample, "--ignore-not-found", "--timeout=1m"},
			{"wait", "workloads.kueue.x-k8s.io", "--namespace", metav1.NamespaceDefault, "--all", "--for=delete", "--timeout=1m"},
		} {
			if _, err := suite.stack.Kubectl(e.ctx, e.cluster, args...); err != nil {
				e.Error(err)
			}
		}
	})
	e.eventually("the sample is taken", func() (bool, string) {
		_, err := suite.stack.Kubectl(e.ctx, e.cluster, "apply", "--validate=strict", "--filename", sample)
		return err == nil, fmt.Sprint(err)
	})
}

// createJob creates the sample's job under another name. Its pods run until they are
// told to end.
func (e *env) createJob(name string) {
	e.Helper()
	text, err := os.ReadFile(suite.stack.Sample("kueue.yaml"))
	if err != nil {
		e.Fatal(err)
	}
	var job batchv1.Job
	documents := strings.Split(string(text), "\n---\n")
	if err := yaml.UnmarshalStrict([]byte(documents[len(documents)-1]), &job); err != nil {
		e.Fatal(err)
	}
	job.Name = name
	job.Spec.Template.Spec.Containers[0].Args = nil
	if _, err := e.client.BatchV1().Jobs(e.namespace).Create(e.ctx, &job, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
}

// queued is a pod of 8 GiB in the sample's queue.
func (e *env) queued(name string) *v1.Pod {
	return e.pod(name, 8, func(pod *v1.Pod) {
		pod.Labels = map[string]string{queueLabel: queueOfSample}
		pod.Spec.RestartPolicy = v1.RestartPolicyNever
	})
}

func (e *env) job(name string) *batchv1.Job {
	e.Helper()
	job, err := e.client.BatchV1().Jobs(e.namespace).Get(e.ctx, name, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return job
}

func (e *env) podsOf(job string) []v1.Pod {
	e.Helper()
	pods, err := e.client.CoreV1().Pods(e.namespace).List(e.ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
	if err != nil {
		e.Fatal(err)
	}
	return pods.Items
}

// jobRuns waits until Kueue has started a job and its two pods have each a share of a
// GPU, and returns them.
func (e *env) jobRuns(name string) []v1.Pod {
	e.Helper()
	e.admitted(name, 16)
	var pods []v1.Pod
	e.eventually("job "+name+" has two pods", func() (bool, string) {
		pods = e.podsOf(name)
		return len(pods) == 2, fmt.Sprint(len(pods))
	})
	for _, pod := range pods {
		e.running(pod.Name)
		e.agree(pod.Name, "sample")
	}
	return pods
}

func (e *env) jobCompletes(name string) {
	e.Helper()
	e.eventually("job "+name+" completes", func() (bool, string) {
		job := e.job(name)
		return job.Status.CompletionTime != nil, job.Status.String()
	})
}

// end tells the sample in these pods to end, which it does with success.
func (e *env) end(pods ...v1.Pod) {
	e.Helper()
	processes, err := e.cluster.ContainerProcesses("sample")
	if err != nil {
		e.Fatal(err)
	}
	ended := 0
	for _, p := range processes {
		if !slices.ContainsFunc(pods, func(pod v1.Pod) bool { return pod.UID == p.Pod }) {
			continue
		}
		if err := p.Signal(syscall.SIGTERM); err != nil {
			e.Fatal(err)
		}
		ended++
	}
	if ended != len(pods) {
		e.Fatalf("%d of %d pods have a process", ended, len(pods))
	}
}

// A workload is what is read here of a Workload of Kueue, which stands for a job or a
// pod in a queue.
type workload struct {
	Metadata metav1.ObjectMeta
	Status   struct {
		Conditions []metav1.Condition
		Admission  struct {
			PodSetAssignments []struct{ Flavors, ResourceUsage map[string]string }
		}
	}
}

func (w workload) condition(kind string) metav1.Condition {
	for _, c := range w.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

// workloadOf returns the Workload of a job or pod, empty while there is none.
func (e *env) workloadOf(name string) workload {
	e.Helper()
	text, err := e.kubectl("get", "workloads.kueue.x-k8s.io", "--output=json")
	if err != nil {
		e.Fatal(err)
	}
	var list struct{ Items []workload }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		e.Fatal(err)
	}
	for _, w := range list.Items {
		if slices.ContainsFunc(w.Metadata.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.Name == name }) {
			return w
		}
	}
	return workload{}
}

// admitted waits until Kueue has admitted a job or pod, with so many units of the
// sample's flavor.
func (e *env) admitted(name string, units int64) {
	e.Helper()
	e.eventually(fmt.Sprintf("%s is admitted with %d units", name, units), func() (bool, string) {
		w := e.workloadOf(name)
		given := w.Status.Admission.PodSetAssignments
		return w.condition("Admitted").Status == metav1.ConditionTrue && len(given) == 1 &&
			given[0].Flavors[gpuMem] == "shared-gpu" && given[0].ResourceUsage[gpuMem] == fmt.Sprint(units), fmt.Sprintf("%+v", w.Status)
	})
}

// waitsForQuota waits until Kueue has said of a job or pod that the quota lacks 8 units.
func (e *env) waitsForQuota(name string) {
	e.Helper()
	const words = "insufficient unused quota for gpumem.dev/gpu-mem in flavor shared-gpu, 8 more needed"
	e.eventually(name+" waits for quota", func() (bool, string) {
		w := e.workloadOf(name)
		reserved := w.condition("QuotaReserved")
		return reserved.Status == metav1.ConditionFalse && len(w.Status.Admission.PodSetAssignments) == 0 && strings.Contains(reserved.Message, words), fmt.Sprintf("%+v", w.Status)
	})
}

// givenAway waits until so many units of all GPUs are given away.
func (e *env) givenAway(units int64) {
	e.Helper()
	e.eventually(fmt.Sprintf("%d units are given away", units), func() (bool, string) {
		books := e.books()
		var sum int64
		for _, gpus := range books {
			for _, n := range gpus {
				sum += n
			}
		}
		return sum == units, fmt.Sprint(books)
	})
}

// mostUnits follows the pods of the namespace. The function that it returns says how
// many units those that were placed and had not ended had together, at most.
func (e *env) mostUnits() func() int64 {
	e.Helper()
	pods, err := e.client.CoreV1().Pods(e.namespace).Watch(e.ctx, metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	ended := make(chan int64, 1)
	go func() {
		var most int64
		units := make(map[types.UID]int64)
		for event := range pods.ResultChan() {
			pod, ok := event.Object.(*v1.Pod)
			if !ok {
				break
			}
			delete(units, pod.UID)
			if event.Type != "DELETED" && pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
				limit := pod.Spec.Containers[0].Resources.Limits[gpuMem]
				units[pod.UID] = limit.Value()
			}
			var sum int64
			for _, n := range units {
				sum += n
			}
			most = max(most, sum)
		}
		ended <- most
	}()
	return func() int64 {
		e.Helper()
		select {
		case <-ended:
			e.Fatal("the watch of pods has ended before the test")
		default:
		}
		pods.Stop()
		return <-ended
	}
}
