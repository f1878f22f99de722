package allocation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// world is a cluster with the scheduler's accounting.
type world struct {
	*cluster
	random *rand.Rand
	books  *cache.Cache
	made   int

	gap    bool            // a pod has ended while its annotation named another GPU than its allocation: see Limits in the package comment
	misled map[string]bool // pods that the scheduler placed while its accounting had some pod on another GPU than the kubelet
	booked map[string]placement.Assignment

	blind  bool // PodResources does not answer, so guesses can be wrong
	strays bool // no scheduler has placed some of the pods
}

// lost reports whether the plugin can confuse pods that are not interchangeable: PodResources does not answer,
// and no scheduler keeps such pods apart.
func (w *world) lost() bool { return w.blind && w.strays }

// FuzzNode binds, admits, ends and corrects pods in any order. It verifies that
//
//  1. the kubelet allocates no slot twice, and no more of a GPU than the GPU offers,
//  2. the scheduler's accounting has no more of a GPU than the GPU offers,
//  3. each pod is on as many GPUs as it requests, in equal parts, and on GPUs that its constraints allow,
//  4. the kubelet admits every pod that the scheduler placed with correct accounting, and
//  5. in the end, the annotations match the allocations.
//
// If the plugin can confuse different pods (lost), only 1 and 5 apply.
func FuzzNode(f *testing.F) {
	for seed := range uint64(120) {
		f.Add(seed)
	}
	f.Add(uint64(2287)) // pods that were placed on one GPU get different GPUs
	f.Add(uint64(589))  // a pod with only init containers follows one whose last container is an init container
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 13))
		var capacities []gpu.Units
		for range 1 + random.IntN(4) {
			capacities = append(capacities, gpu.Units(random.IntN(12)))
		}
		w := &world{
			cluster: newCluster(t, seed, inventory(capacities...)), random: random, books: cache.New(), misled: make(map[string]bool), booked: make(map[string]placement.Assignment),
			blind: random.IntN(2) == 0, strays: random.IntN(2) == 0,
		}
		if w.blind {
			w.kubelet.prefer = func(r gpu.Resource, available, must []gpu.SlotID, size int) ([]gpu.SlotID, error) {
				s := w.state()
				s.Listed = nil
				return Prefer(s, r, available, must, size)
			}
		}
		w.books.SetNode("n", w.inv)
		for range 40 {
			switch random.IntN(6) {
			case 0, 1:
				w.create()
			case 2, 3:
				w.admitAny()
			case 4:
				w.end()
			case 5:
				w.reconcile()
			}
			w.check()
		}
		for w.admitAny() {
		}
		w.reconcile()
		w.check()
		w.checkAtRest()
	})
}

func (w *world) request() placement.Request {
	if len(w.pods) > 0 && w.random.IntN(2) == 0 { // equal requests, so that the plugin can confuse the pods
		return w.pods[w.random.IntN(len(w.pods))].Request
	}
	var r placement.Request
	if w.random.IntN(5) == 0 {
		r.Count = 2
	}
	var containers []placement.Container
	for i := range 1 + w.random.IntN(3) {
		c := placement.Container{Name: fmt.Sprint("c", i), Kind: placement.App, Units: gpu.Units((1 + w.random.IntN(3)) * r.GPUs())}
		if r.Count < 2 { // see pkg/kube/api: special rules for init containers with several GPUs
			c.Kind = placement.ContainerKind(w.random.IntN(3))
		}
		if w.random.IntN(3) == 0 {
			c.Cores = 20 * (1 + w.random.IntN(3))
		}
		containers = append(containers, c)
	}
	slices.SortStableFunc(containers, func(a, b placement.Container) int { // init containers of both kinds come first
		return boolToInt(a.Kind == placement.App) - boolToInt(b.Kind == placement.App)
	})
	r.Containers = placement.NewContainers(containers...)
	if w.random.IntN(6) == 0 {
		r.UUIDs = placement.NewGlobs("!" + string(uuid(0)))
	}
	if w.random.IntN(8) == 0 {
		r.Policy = placement.Exclusive
	}
	return r
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (w *world) create() {
	w.made++
	p := pod(fmt.Sprint("p", w.made), w.request())
	p.Created = start.Add(time.Duration(w.random.IntN(100)) * time.Second)
	if !w.strays || w.random.IntN(3) > 0 {
		a, err := w.books.AssumePod(p.Pod, "n", p.Request, placement.Binpack, start)
		if err != nil {
			return
		}
		p.Assignment, w.booked[p.Pod.Name] = a, a
		w.misled[p.Pod.Name] = len(Reconcile(w.state())) > 0
	}
	w.pods = append(w.pods, p)
	w.books.AddPod("n", p.Holding)
}

func (w *world) admitAny() bool {
	var waiting []int
	for i, p := range w.pods {
		if !p.Admitted {
			waiting = append(waiting, i)
		}
	}
	if len(waiting) == 0 {
		return false
	}
	i := waiting[w.random.IntN(len(waiting))]
	p := w.pods[i]
	if _, err := w.kubelet.admit(p.Pod, p.Request); err != nil {
		if !p.Assignment.None() && !w.misled[p.Pod.Name] && !w.apart(p) && !w.lost() {
			w.t.Fatalf("pod %s, which the scheduler placed, is not admitted: %v\n%+v\nof %+v", p.Pod, err, p.Request, w.pods)
		}
		w.remove(i)
		return true
	}
	w.pods[i].Admitted = true
	w.books.AddPod("n", w.pods[i].Holding)
	return true
}

// apart reports whether the plugin could confuse a pod with a different waiting pod on the same GPU, because
// PodResources does not answer: see Limits in the package comment.
func (w *world) apart(p Pod) bool {
	return w.blind && slices.ContainsFunc(w.pods, func(o Pod) bool {
		return !o.Admitted && o.Request.Confusable(p.Request) && !o.Request.Interchangeable(p.Request) &&
			w.booked[o.Pod.Name].SameDevices(w.booked[p.Pod.Name])
	})
}

func (w *world) end() {
	if len(w.pods) > 0 {
		w.remove(w.random.IntN(len(w.pods)))
	}
}

func (w *world) remove(i int) {
	w.gap = w.gap || len(Reconcile(w.state())) > 0
	w.kubelet.remove(w.pods[i].Pod)
	w.books.RemovePod(w.pods[i].Pod.UID)
	w.pods = slices.Delete(w.pods, i, i+1)
}

// reconcile writes corrections one by one. After each write, the scheduler's accounting must show at least the
// allocated and planned memory of each GPU, because the scheduler could give the difference to another pod.
func (w *world) reconcile() {
	for corrections := Reconcile(w.state()); len(corrections) > 0; corrections = Reconcile(w.state()) {
		for _, c := range corrections {
			w.write(c)
			for _, p := range w.pods {
				w.books.AddPod("n", p.Holding)
			}
			n, _ := w.books.Node("n")
			for i, d := range n.Devices {
				if want := w.promised(i); want > d.Requested+unattributed(n) && !w.gap && !w.lost() {
					w.t.Fatalf("%d of GPU %d is promised, and %d is booked, once %s is written as %v", want, i, d.Requested, c.Pod.Pod, c.Actual)
				}
			}
		}
	}
	w.gap = false
}

func unattributed(n placement.Node) (sum gpu.Units) {
	for _, h := range n.Unattributed {
		sum += h.Request.Units()
	}
	return sum
}

// promised returns the allocated and planned units of a GPU.
func (w *world) promised(i int) (sum gpu.Units) {
	b := byPod(w.state())
	b.locate()
	for _, t := range b.pods {
		for _, s := range t.Assignment.Shares {
			if s.Device == uuid(i) {
				sum += s.Units
			}
		}
	}
	return sum
}

func (w *world) check() {
	w.t.Helper()
	holders := make(map[gpu.SlotID]Allocated)
	held, _ := w.kubelet.podResources()
	for _, h := range held {
		for _, id := range h.Slots {
			if other, twice := holders[id]; twice {
				w.t.Fatalf("slot %s is held by %+v and %+v", id, other, h)
			}
			holders[id] = h
		}
	}
	total, totalCores := make([]gpu.Units, len(w.inv.Devices)), make([]gpu.Units, len(w.inv.Devices))
	for _, p := range w.pods {
		if !p.Admitted {
			continue
		}
		share, shareOfCores := p.Request.Share()
		gpus := 0
		cores := w.slotsOn(gpu.Cores, p.Pod.Name)
		for i, units := range w.on(p.Pod.Name) {
			total[i] += units
			totalCores[i] += cores[i]
			if units == 0 && cores[i] == 0 {
				continue
			}
			if int(cores[i]) != shareOfCores && !w.lost() {
				w.t.Fatalf("pod %s holds %d%% of GPU %d, want %d%% of each", p.Pod, cores[i], i, shareOfCores)
			}
			gpus++
			if units != share && !w.lost() {
				w.t.Fatalf("pod %s holds %d of GPU %d, want %d of each", p.Pod, units, i, share)
			}
			if !p.Request.UUIDs.Match(string(uuid(i))) && !w.lost() {
				w.t.Fatalf("pod %s is on GPU %d, which it excludes", p.Pod, i)
			}
		}
		if gpus != p.Request.GPUs() && !w.lost() {
			w.t.Fatalf("pod %s is on %d GPUs, want %d", p.Pod, gpus, p.Request.GPUs())
		}
	}
	for i, d := range w.inv.Devices {
		if total[i] > d.Allocatable || totalCores[i] > gpu.CoresPerDevice {
			w.t.Fatalf("GPU %d gives %d of %d, and %d%% of its cores", i, total[i], d.Allocatable, totalCores[i])
		}
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

func (w *world) checkAtRest() {
	w.t.Helper()
	for _, p := range w.pods {
		if w.lost() && unseen(p.Request) {
			continue // its init container may have one resource on another GPU
		}
		var want []int
		cores := w.slotsOn(gpu.Cores, p.Pod.Name)
		for i, units := range w.on(p.Pod.Name) {
			if units > 0 || cores[i] > 0 {
				want = append(want, i)
			}
		}
		if got := w.written(p.Pod.Name); !slices.Equal(got, want) {
			w.t.Fatalf("pod %s is on %v, and %v is written", p.Pod, want, got)
		}
	}
	n, _ := w.books.Node("n")
	for _, d := range n.Devices {
		if (d.Requested > d.Allocatable || d.RequestedCores > gpu.CoresPerDevice) && !w.lost() {
			w.t.Fatalf("in the books, GPU %d gives %d of %d, and %d%% of its cores", d.Index, d.Requested, d.Allocatable, d.RequestedCores)
		}
	}
	if len(n.Unattributed) > 0 {
		w.t.Fatalf("in the books, no GPU is known of %v", n.Unattributed)
	}
}
