package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/cluster"
)

const (
	sampleInterval = 500 * time.Millisecond
	// mendTime is how long something may be wrong that the device plugin can
	// mend, counted while all parts are up.
	mendTime = 20 * time.Second
	// settleTime is how long parts that have started need before they count as up.
	settleTime = 3 * time.Second
	// restTime is how long it may take until pods have stopped coming and going.
	restTime = 2 * time.Minute
)

// A Watcher looks at a cluster from outside the product and collects what
// breaks its promises.
type Watcher struct {
	cluster  *cluster.Cluster
	client   kubernetes.Interface
	devices  devices
	kubelets []*kubelet
	tracker  *tracker
	log      io.Writer

	mu         sync.Mutex
	violations []finding
	known      map[string]bool
	overlaps   map[string]bool // of pods deleted by force
	held       map[string][]holding
	living     []process
	suspects   map[string]time.Duration // text of a finding: how long it has been there
	longest    time.Duration            // that a suspect has lasted
	up         time.Duration            // how long all parts have been up
	samples    map[string]int
	parts      string // that are up: changes with every start
	partsSince time.Time
}

func newWatcher(b *bench, t *tracker) (*Watcher, error) {
	w := &Watcher{
		cluster: b.cluster, client: b.client, devices: b.devices, tracker: t, log: b.log,
		known: make(map[string]bool), overlaps: make(map[string]bool), held: make(map[string][]holding),
		suspects: make(map[string]time.Duration), samples: make(map[string]int),
	}
	for _, node := range b.cluster.Nodes() {
		k, err := dialKubelet(b.cluster, node)
		if err != nil {
			return nil, errors.Join(err, w.close())
		}
		w.kubelets = append(w.kubelets, k)
	}
	return w, nil
}

func (w *Watcher) close() error {
	var errs []error
	for _, k := range w.kubelets {
		errs = append(errs, k.close())
	}
	return errors.Join(errs...)
}

// run looks until ctx ends. Each source is read on its own, so that one that is
// down does not hide the others.
func (w *Watcher) run(ctx context.Context) {
	var group sync.WaitGroup
	loop := func(look func(context.Context)) {
		group.Go(func() {
			for ; ctx.Err() == nil; sleep(ctx, sampleInterval) {
				look(ctx)
			}
		})
	}
	for _, k := range w.kubelets {
		loop(func(ctx context.Context) { w.lookAtKubelet(ctx, k) })
	}
	loop(w.lookAtProcesses)
	last := time.Now()
	loop(func(ctx context.Context) {
		now := time.Now()
		w.lookAtPods(ctx, now.Sub(last))
		last = now
	})
	group.Wait()
}

// lookAtKubelet checks I1 in what a kubelet has given.
func (w *Watcher) lookAtKubelet(ctx context.Context, k *kubelet) {
	held, err := k.held(ctx)
	if err != nil {
		return
	}
	findings := checkHeld(w.devices, k.node, held)
	if len(findings) > 0 {
		// The kubelet does not answer from one moment. What it still says is so.
		again, err := k.held(ctx)
		if err != nil {
			return
		}
		held = again
		second := checkHeld(w.devices, k.node, again)
		findings = slices.DeleteFunc(findings, func(f finding) bool { return !slices.Contains(second, f) })
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[k.node] = held
	w.samples["kubelets"]++
	w.report(findings...)
}

// lookAtProcesses checks I1 in the grants of what really runs.
func (w *Watcher) lookAtProcesses(context.Context) {
	processes, err := living(w.cluster.Name())
	if err != nil {
		return
	}
	// Read after the processes: what was forced before may be among them.
	crowds := checkLiving(w.devices, processes, w.tracker.forcedPods())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.living = processes
	w.samples["processes"]++
	for _, c := range crowds {
		// The processes were read one by one. If all are alive after that, there was
		// a moment with all of them.
		if slices.ContainsFunc(c.processes, func(p process) bool { return !alive(p.pid, p.start) }) {
			continue
		}
		if c.forced {
			w.overlaps[c.text] = true
			continue
		}
		w.report(finding{invariant: i1, text: c.text})
	}
}

// lookAtPods checks I2 and I4 in what is written, and I5 against what was read
// last of the others.
func (w *Watcher) lookAtPods(ctx context.Context, elapsed time.Duration) {
	up := w.partsUp()
	pods, err := listPods(ctx, w.client)
	if err != nil {
		return
	}
	findings := checkShares(w.devices, pods)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range pods {
		findings = append(findings, checkAssignment(w.devices, p)...)
		if p.node != "" && !p.ended && !p.deleting && p.problem == "" {
			findings = append(findings, checkKubelet(w.devices, p, w.held[p.node])...)
			findings = append(findings, checkEnvironment(p, w.living)...)
		}
	}
	w.samples["pods"]++
	if up {
		w.up += elapsed
	} else {
		elapsed = 0
	}
	w.suspect(findings, elapsed)
}

// suspect reports findings that are certain, and the others when they have
// lasted; w.mu is held.
func (w *Watcher) suspect(findings []finding, elapsed time.Duration) {
	lasting := make(map[string]time.Duration)
	for _, f := range findings {
		if !f.lenient {
			w.report(f)
			continue
		}
		age, before := w.suspects[f.text]
		if before {
			age += elapsed
		}
		lasting[f.text] = age
		w.longest = max(w.longest, age)
		if age > mendTime {
			w.report(f)
		}
	}
	w.suspects = lasting
}

// report counts a violation once; w.mu is held.
func (w *Watcher) report(findings ...finding) {
	for _, f := range findings {
		if w.known[f.text] {
			continue
		}
		w.known[f.text] = true
		w.violations = append(w.violations, f)
		fmt.Fprintln(w.log, "VIOLATION", f)
	}
}

// partsUp says whether all parts run, and have for a moment.
func (w *Watcher) partsUp() bool {
	var now []string
	complete := true
	for _, name := range w.cluster.Processes() {
		pid, running := w.cluster.Running(name)
		complete = complete && running
		now = append(now, fmt.Sprint(name, pid))
	}
	product, err := findProcesses(w.cluster.Name(), "gpumem-extender", "gpumem-device-plugin", "kube-scheduler")
	if err != nil {
		return false
	}
	for program, want := range map[string]int{"gpumem-extender": replicas, "kube-scheduler": replicas, "gpumem-device-plugin": len(w.kubelets)} {
		complete = complete && len(product[program]) == want
		for _, p := range product[program] {
			now = append(now, fmt.Sprint(program, p.pid))
		}
	}
	slices.Sort(now)
	key := strings.Join(now, " ")
	w.mu.Lock()
	defer w.mu.Unlock()
	if key != w.parts {
		w.parts, w.partsSince = key, time.Now()
	}
	return complete && time.Since(w.partsSince) > settleTime
}

// rest waits until all that was begun has ended, and reports what then is not
// as it must be at rest.
func (w *Watcher) rest(ctx context.Context) error {
	deadline := time.Now().Add(restTime)
	for calm := 0; ; sleep(ctx, time.Second) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		findings, err := w.lookAtAll(ctx)
		switch {
		case err != nil:
			calm = 0
		case len(findings) == 0:
			if calm++; calm == 2 {
				return nil
			}
			continue
		default:
			calm = 0
		}
		if time.Now().After(deadline) {
			w.mu.Lock()
			w.report(findings...)
			w.mu.Unlock()
			return err
		}
	}
}

// lookAtAll reads everything and returns what would be wrong at rest.
func (w *Watcher) lookAtAll(ctx context.Context) ([]finding, error) {
	pods, err := listPods(ctx, w.client)
	if err != nil {
		return nil, err
	}
	held, err := w.allHeld(ctx)
	if err != nil {
		return nil, err
	}
	processes, err := living(w.cluster.Name())
	if err != nil {
		return nil, err
	}
	out := checkShares(w.devices, pods)
	for _, p := range pods {
		out = append(out, checkAssignment(w.devices, p)...)
		out = append(out, checkRest(w.devices, p, held[p.node], processes)...)
	}
	return out, nil
}

// checkRest checks one pod at rest.
func checkRest(all devices, p pod, held []holding, processes []process) []finding {
	switch {
	case p.ended:
		return nil
	case p.deleting:
		return []finding{{stuck, fmt.Sprintf("pod %v is still being deleted", p), true}}
	case p.node == "" && p.waits == "":
		return []finding{{stuck, fmt.Sprintf("pod %v is not bound, and nobody says why", p), true}}
	case p.node == "":
		return nil
	case !p.ready && p.shape == "restarts":
		return nil // it comes and goes
	case !p.ready:
		return []finding{{stuck, fmt.Sprintf("pod %v is bound to %s and does not run", p, p.node), true}}
	}
	out := checkKubelet(all, p, held)
	out = append(out, checkEnvironment(p, processes)...)
	if p.shape != "restarts" && p.shape != "ends" {
		out = append(out, checkComplete(p, held, processes)...)
	}
	return out
}

// allHeld asks all kubelets what they have given, by node.
func (w *Watcher) allHeld(ctx context.Context) (map[string][]holding, error) {
	out := make(map[string][]holding)
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for _, k := range w.kubelets {
		group.Go(func() error {
			held, err := k.held(ctx)
			mu.Lock()
			defer mu.Unlock()
			out[k.node] = held
			return err
		})
	}
	return out, group.Wait()
}

// count returns how many violations there are, of the named invariants or of
// all.
func (w *Watcher) count(of ...invariant) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, f := range w.violations {
		if len(of) == 0 || slices.Contains(of, f.invariant) {
			n++
		}
	}
	return n
}
