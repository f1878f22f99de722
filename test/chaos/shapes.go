package chaos

import (
	"fmt"
	"math/rand/v2"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/stack"
)

const (
	namespace  = "chaos"
	shapeLabel = "chaos/shape"
	direct     = "direct"   // the name of the shape with a nodeName
	restarts   = "restarts" // the name of the shape whose container fails again and again
)

// shape makes pods of one kind.
type shape struct {
	name   string
	weight int
	change func(r *rand.Rand, pod *v1.Pod, nodes []string)
}

func shapes() []shape {
	always := v1.ContainerRestartPolicyAlways
	units := func(r *rand.Rand, from, to int64) int64 { return from + r.Int64N(to-from+1) }
	return []shape{
		{"single", 30, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", units(r, 1, 6))}
		}},
		// Of equal size, so that the kubelet can take one for another.
		{"equal", 15, func(_ *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", 4)}
			pod.Annotations[policyKey] = "spread"
		}},
		{"large", 8, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", units(r, 9, 14))}
		}},
		{"huge", 2, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", units(r, 30, 50))}
		}},
		{"multi", 10, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("one", units(r, 1, 3)), stack.SampleContainer("two", units(r, 1, 3)), stack.SampleContainer("none", 0)}
		}},
		{"sidecar", 10, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			sidecar := stack.SampleContainer("sidecar", 1)
			sidecar.RestartPolicy = &always
			pod.Spec.InitContainers = []v1.Container{sidecar, stack.SampleContainer("prepare", units(r, 1, 5), "-exit-after=50ms")}
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", units(r, 1, 3))}
		}},
		{"two-gpus", 10, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Annotations[countKey] = "2"
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", 2*units(r, 1, 4))}
		}},
		{"exclusive", 3, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", units(r, 1, 4))}
			pod.Annotations[policyKey] = "exclusive"
		}},
		{direct, 8, func(r *rand.Rand, pod *v1.Pod, nodes []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", units(r, 1, 4))}
			pod.Spec.NodeName = nodes[r.IntN(len(nodes))]
		}},
		{"ends", 8, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", units(r, 1, 4), "-exit-after=1s")}
			pod.Spec.RestartPolicy = v1.RestartPolicyNever
		}},
		{restarts, 4, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", units(r, 1, 4), "-exit-after=2s", "-exit-code=1")}
		}},
		{"stubborn", 6, func(r *rand.Rand, pod *v1.Pod, _ []string) {
			pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", units(r, 1, 6), "-ignore-term")}
			pod.Spec.TerminationGracePeriodSeconds = new(int64(3))
		}},
	}
}

// newPod makes a pod of a random shape.
func newPod(r *rand.Rand, name string, nodes []string) *v1.Pod {
	all := shapes()
	total := 0
	for _, s := range all {
		total += s.weight
	}
	n := r.IntN(total)
	i := 0
	for ; n >= all[i].weight; i++ {
		n -= all[i].weight
	}
	pod := basicPod(name)
	pod.Labels[shapeLabel] = all[i].name
	all[i].change(r, pod, nodes)
	return pod
}

// basicPod is a pod without containers.
func basicPod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			SchedulerName:                 schedulerName,
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
		},
	}
}

// newJob makes a Job of a few pods that complete.
func newJob(r *rand.Rand, name string) *batchv1.Job {
	pod := basicPod("")
	pod.Spec.RestartPolicy = v1.RestartPolicyNever
	pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", 1+r.Int64N(3), "-exit-after=500ms")}
	pod.Labels[shapeLabel] = "job"
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: batchv1.JobSpec{
			Completions:  new(int32(2)),
			Parallelism:  new(int32(2)),
			BackoffLimit: new(int32(20)), // pods that are refused are tried again
			Template:     v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}
}

// fullPod asks for all of one GPU.
func fullPod(d device) *v1.Pod {
	pod := basicPod(fmt.Sprintf("full-%s-%d", d.node, d.index))
	pod.Annotations[uuidKey] = d.uuid
	pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: d.node}
	pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", d.units)}
	return pod
}
