package scheduler

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// behind is how much later than kube-scheduler the extender hears of a change where its
// watch is behind: longer than Filter waits for news.
const behind = 2 * time.Second

// TestAWaitingPodIsTriedAgain has a pod wait that no GPU of the node has room for, and
// then something happens by which it fits: it is tried again soon, and not with the
// flush of all that wait, which comes after five minutes.
func TestAWaitingPodIsTriedAgain(t *testing.T) {
	const name = "node"
	full := func(t testing.TB) []runtime.Object {
		n := node(t, name)
		return []runtime.Object{n, pod(t, "first", 6, on(t, n, 0)), pod(t, "second", 6, on(t, n, 1))}
	}
	waiting := func(t testing.TB) *v1.Pod { return pod(t, "waiting", 8) }
	// offers returns a node whose first GPU is as it comes and the second is changed, with
	// a pod on the first.
	offers := func(change func(*gpu.Device)) func(testing.TB) []runtime.Object {
		return func(t testing.TB) []runtime.Object {
			d := device(name, 1)
			change(&d)
			n := nodeOf(t, name, device(name, 0), d)
			return []runtime.Object{n, pod(t, "first", 2, on(t, n, 0)), pod(t, "second", 2, on(t, n, 0))}
		}
	}
	// evicting returns a node with a pod without a GPU that leaves, and one GPU that is free
	// and two that are not, and a node that takes no pods. By its sum the node has room for
	// a pod of 4 and for one of a whole GPU.
	evicting := func(t testing.TB) []runtime.Object {
		n, closed := nodeOf(t, name, device(name, 0), device(name, 1), device(name, 2)), node(t, "closed")
		closed.Spec.Unschedulable = true
		leaves := pod(t, "leaves", 0, cpu("60"), evicted)
		leaves.Spec.NodeName = name
		return []runtime.Object{n, closed, leaves, pod(t, "first", 8, on(t, n, 1)), pod(t, "second", 8, on(t, n, 2))}
	}
	small := func(t testing.TB) *v1.Pod { return pod(t, "waiting", 4) }
	// promised returns a node with a GPU that has room for a pod of 5 and has one that
	// leaves, and a node that takes no pods.
	promised := func(t testing.TB) []runtime.Object {
		n, closed := node(t, name), node(t, "closed")
		closed.Spec.Unschedulable = true
		return []runtime.Object{n, closed, pod(t, "leaves", 4, on(t, n, 0), evicted), pod(t, "second", 6, on(t, n, 1))}
	}
	smaller := func(t testing.TB) *v1.Pod { return pod(t, "waiting", 5) }
	whole := func(t testing.TB, c *cluster, _ time.Duration) {
		c.changeNode(t, name, func(n *v1.Node) { setGPUs(t, n, device(name, 0), device(name, 1)) })
	}
	for _, tc := range []struct {
		name    string
		objects func(testing.TB) []runtime.Object
		waiting func(testing.TB) *v1.Pod
		prepare func(testing.TB, *cluster) // once kube-scheduler runs
		change  func(t testing.TB, c *cluster, late time.Duration)
		want    place
	}{
		{
			name: "a pod is gone", objects: full, waiting: waiting,
			change: func(t testing.TB, c *cluster, _ time.Duration) { c.remove(t, "first") },
			want:   place{name, []int{0}},
		},
		{
			name: "a pod has ended", objects: full, waiting: waiting,
			change: func(t testing.TB, c *cluster, _ time.Duration) {
				c.changePod(t, "second", func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded })
			},
			want: place{name, []int{1}},
		},
		{
			name: "a pod is on another GPU than was written",
			objects: func(t testing.TB) []runtime.Object {
				n := node(t, name)
				return []runtime.Object{n, pod(t, "first", 5, on(t, n, 0)), pod(t, "second", 5, on(t, n, 1))}
			},
			waiting: waiting,
			change: func(t testing.TB, c *cluster, _ time.Duration) {
				c.changePod(t, "second", func(p *v1.Pod) { assign(t, p, node(t, name), 0) })
			},
			want: place{name, []int{1}},
		},
		{
			name: "a GPU is uncordoned",
			objects: func(t testing.TB) []runtime.Object {
				n := node(t, name)
				n.Annotations[names(t).Cordoned()] = api.FormatCordonedGPUs([]gpu.UUID{uuid(name, 1)})
				return []runtime.Object{n, pod(t, "first", 6, on(t, n, 0))}
			},
			waiting: waiting,
			change: func(t testing.TB, c *cluster, _ time.Duration) {
				c.changeNode(t, name, func(n *v1.Node) { delete(n.Annotations, names(t).Cordoned()) })
			},
			want: place{name, []int{1}},
		},
		{
			name:    "a GPU is healthy again",
			objects: offers(func(d *gpu.Device) { d.Status = gpu.Unhealthy("XID 79") }),
			waiting: waiting, change: whole, want: place{name, []int{1}},
		},
		{
			name: "a GPU is healthy again, and the kubelet had offered it all the time",
			objects: func(t testing.TB) []runtime.Object {
				all := offers(func(d *gpu.Device) { d.Status = gpu.Unhealthy("XID 79") })(t)
				all[0].(*v1.Node).Status.Allocatable = node(t, name).Status.Allocatable
				return all
			},
			waiting: waiting, change: whole, want: place{name, []int{1}},
		},
		{
			name: "a GPU is added",
			objects: func(t testing.TB) []runtime.Object {
				n := nodeOf(t, name, device(name, 0))
				return []runtime.Object{n, pod(t, "first", 6, on(t, n, 0))}
			},
			waiting: waiting, change: whole, want: place{name, []int{1}},
		},
		{
			name: "a node is added", waiting: waiting, objects: full,
			change: func(t testing.TB, c *cluster, _ time.Duration) { c.add(t, node(t, "other")) },
			want:   place{"other", []int{0}},
		},
		{
			name:    "another program lets go of a GPU",
			objects: offers(func(d *gpu.Device) { d.Foreign = 6 }),
			waiting: func(t testing.TB) *v1.Pod { return pod(t, "waiting", 7) },
			change:  whole, want: place{name, []int{1}},
		},
		{
			name: "the pod itself asks for another model", objects: func(t testing.TB) []runtime.Object { return []runtime.Object{node(t, name)} },
			waiting: func(t testing.TB) *v1.Pod { return pod(t, "waiting", 8, annotated(names(t).Model(), "*H100*")) },
			change: func(t testing.TB, c *cluster, _ time.Duration) {
				c.changePod(t, "waiting", func(p *v1.Pod) { p.Annotations[names(t).Model()] = "*A10*" })
			},
			want: place{name, []int{0}},
		},
		{
			name: "the pod itself does not want a GPU of its own any more",
			objects: func(t testing.TB) []runtime.Object {
				n := node(t, name)
				return []runtime.Object{n, pod(t, "first", 2, on(t, n, 0)), pod(t, "second", 3, on(t, n, 1))}
			},
			waiting: func(t testing.TB) *v1.Pod { return pod(t, "waiting", 7, annotated(names(t).Policy(), "exclusive")) },
			change: func(t testing.TB, c *cluster, _ time.Duration) {
				c.changePod(t, "waiting", func(p *v1.Pod) { p.Annotations[names(t).Policy()] = "binpack" })
			},
			want: place{name, []int{1}},
		},
		{
			name: "a nominated pod is on another node", objects: evicting, waiting: small, prepare: nominate,
			change: func(t testing.TB, c *cluster, _ time.Duration) {
				c.changePod(t, "nominated", func(p *v1.Pod) {
					on(t, node(t, "closed"), 0)(p)
					p.Status.NominatedNodeName = ""
				})
			},
			want: place{name, []int{0}},
		},
		{
			name: "a nominated pod is gone", objects: evicting, waiting: small, prepare: nominate,
			change: func(t testing.TB, c *cluster, _ time.Duration) { c.remove(t, "nominated") },
			want:   place{name, []int{0}},
		},
		{
			name: "a pod that people made room for is on another node", objects: promised, waiting: smaller, prepare: makeRoomFor,
			change: func(t testing.TB, c *cluster, _ time.Duration) {
				c.changePod(t, "nominated", on(t, node(t, "closed"), 0))
			},
			want: place{name, []int{0}},
		},
		{
			name: "a pod that people made room for is gone", objects: promised, waiting: smaller, prepare: makeRoomFor,
			change: func(t testing.TB, c *cluster, _ time.Duration) { c.remove(t, "nominated") },
			want:   place{name, []int{0}},
		},
		{
			name: "people make room for a pod no more", objects: promised, waiting: smaller, prepare: makeRoomFor,
			change: func(t testing.TB, c *cluster, _ time.Duration) {
				c.changePod(t, "nominated", func(p *v1.Pod) {
					p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == api.Reserved })
				})
			},
			want: place{name, []int{0}},
		},
		{
			name: "the API server is back, and a pod is gone", objects: full, waiting: waiting,
			change: func(t testing.TB, c *cluster, late time.Duration) {
				both := []*Conn{c.toExtender, c.toScheduler}
				for _, conn := range both {
					conn.Cut()
				}
				c.remove(t, "first")
				if late > 0 {
					slices.Reverse(both)
				}
				for _, conn := range both { // client-go waits before it tries again
					conn.Restore()
					c.eventually(t, 10*time.Second, "pods are watched again", func() bool { return conn.watches(podsResource) })
				}
			},
			want: place{name, []int{0}},
		},
	} {
		for _, step := range []struct {
			title string
			late  time.Duration
			setup setup
		}{
			{"in step", 0, func(*cluster) {}}, {"behind", behind, func(*cluster) {}},
			{"plugin", 0, inProcess}, {"plugin, behind", 0, func(c *cluster) { c.late = behind; inProcess(c) }},
		} {
			late := step.late
			t.Run(tc.name+"/"+step.title, func(t *testing.T) {
				t.Parallel()
				c := start(t, tc.objects(t), step.setup)
				if tc.prepare != nil {
					tc.prepare(t, c)
				}
				c.add(t, tc.waiting(t))
				c.waits(t, "waiting")
				asked := len(c.questions("waiting"))
				c.toExtender.Delay(late)
				tc.change(t, c, late)
				at := c.bound(t, "waiting", late)
				if diff := cmp.Diff(tc.want, at); diff != "" {
					t.Errorf("place (-want +got):\n%s", diff)
				}
				t.Logf("%d questions before and %d since", asked, len(c.questions("waiting"))-asked)
			})
		}
	}
}

// evicted is a pod that kube-scheduler has evicted and that has not ended.
func evicted(p *v1.Pod) {
	now := metav1.Now()
	p.DeletionTimestamp = &now
	p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
	})
}

// nominate adds a pod that kube-scheduler has nominated to the node: all of a GPU is to
// be its own.
func nominate(t testing.TB, c *cluster) {
	t.Helper()
	c.promise(t, cpu("60"), func(p *v1.Pod) { p.Status.NominatedNodeName = "node" })
}

// makeRoomFor adds a pod for which people make room on the node's first GPU, and that
// evicts no pod by itself.
func makeRoomFor(t testing.TB, c *cluster) {
	t.Helper()
	c.promise(t, func(p *v1.Pod) {
		never := v1.PreemptNever
		p.Spec.PreemptionPolicy = &never
		p.Status.Conditions = append(p.Status.Conditions, api.Reservation{Node: "node", GPUs: []gpu.UUID{uuid("node", 0)}}.Condition(time.Now()))
	})
}

func (c *cluster) promise(t testing.TB, how ...option) {
	t.Helper()
	c.add(t, pod(t, "nominated", 10, append(how, priority(1000))...))
	c.waits(t, "nominated")
	c.eventually(t, 10*time.Second, "the extender has heard who is nominated", func() bool {
		n, ok := c.cache.Node("node")
		return ok && len(n.Nominated) == 1
	})
}
