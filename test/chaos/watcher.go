package chaos

import (
	"context"
	"fmt"
	"io"
	"maps"
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
	// repairTime is how long something may be wrong that the device plugin can
	// repair, counted while all parts are up. Its watches try again up to a minute
	// after the API server is back: client-go waits longer each time.
	repairTime = 90 * time.Second
	// settleTime is how long parts that have started need before they count as up.
	settleTime = 3 * time.Second
)

// A watcher looks at a cluster from outside the product and collects what
// breaks its promises.
type watcher struct {
	cluster *cluster.Cluster
	client  kubernetes.Interface
	devices devices
	tracker *tracker
	journal *journal
	log     io.Writer

	scheduler []string // the programs of one of the scheduler's pods

	mu         sync.Mutex
	violations []violation
	known      map[string]bool // texts of violations
	overlaps   map[string]bool // of pods deleted by force
	held       map[string][]holding
	living     []process
	suspects   map[string]time.Duration // text of a finding: how long it has been there
	samples    samples
	parts      string // that are up: changes with every start
	partsSince time.Time
}

// samples is how much the watcher has looked.
type samples struct {
	kubelets, processes, pods int
	up                        time.Duration // how long all parts were up
	longest                   time.Duration // that there was something to repair, while all parts were up
	wait                      time.Duration // the longest of a pod that fits, after the last fault
	miscounts                 int           // how often kube-scheduler counted pods that were gone
}

// A violation is a finding that is certain.
type violation struct {
	finding
	at time.Time
}

func newWatcher(b *bench) *watcher {
	return &watcher{
		cluster: b.cluster, client: b.client, devices: b.devices, tracker: b.tracker, journal: b.journal, log: b.log,
		scheduler: b.stack.SchedulerPrograms(), known: make(map[string]bool), overlaps: make(map[string]bool), held: make(map[string][]holding), suspects: make(map[string]time.Duration),
	}
}

// run looks until ctx ends. Each source is read on its own, so that one that is
// down does not hide the others.
func (w *watcher) run(ctx context.Context) {
	var group sync.WaitGroup
	loop := func(look func(context.Context)) {
		group.Go(func() {
			for ; ctx.Err() == nil; sleep(ctx, sampleInterval) {
				look(ctx)
			}
		})
	}
	for _, node := range w.cluster.Nodes() {
		loop(func(ctx context.Context) { w.lookAtKubelet(ctx, node) })
	}
	loop(func(context.Context) { w.lookAtProcesses() })
	last := time.Now()
	loop(func(ctx context.Context) {
		now := time.Now()
		w.lookAtPods(ctx, now.Sub(last))
		last = now
	})
	group.Wait()
}

// lookAtKubelet checks I1 in what a kubelet has given.
func (w *watcher) lookAtKubelet(ctx context.Context, node string) {
	given, err := held(ctx, w.cluster, node)
	if err != nil {
		return
	}
	findings := checkHeld(w.devices, node, given)
	if len(findings) > 0 {
		// The kubelet does not answer from one moment. What it still says is so.
		if given, err = held(ctx, w.cluster, node); err != nil {
			return
		}
		again := checkHeld(w.devices, node, given)
		findings = slices.DeleteFunc(findings, func(f finding) bool {
			return !slices.ContainsFunc(again, func(g finding) bool { return f.text == g.text })
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteChanges(node, w.held[node], given)
	w.held[node] = given
	w.samples.kubelets++
	w.report(findings...)
}

// noteChanges writes down what a kubelet has given and taken back.
func (w *watcher) noteChanges(node string, before, now []holding) {
	note := func(what string, these, others []holding) {
		for _, h := range these {
			if !slices.ContainsFunc(others, func(o holding) bool { return o.String() == h.String() && slices.Equal(o.ids, h.ids) }) {
				w.journal.add(h.pod, "%s: the kubelet of %s %s %v", h.container, node, what, h.ids)
			}
		}
	}
	note("has taken back", before, now)
	note("has given", now, before)
}

// lookAtProcesses checks I1 in the grants of what really runs.
func (w *watcher) lookAtProcesses() {
	processes, err := living(w.cluster)
	if err != nil {
		return
	}
	// Read after the processes: what was forced before may be among them.
	crowds := checkLiving(w.devices, processes, w.tracker.forcedPods())
	if len(crowds) > 0 {
		// The processes were read one by one. Those that are still there were all
		// there at one moment, between the first reading and the second.
		again, err := living(w.cluster)
		if err != nil {
			return
		}
		processes = slices.DeleteFunc(processes, func(p process) bool {
			return !slices.ContainsFunc(again, func(q process) bool { return p.Process == q.Process })
		})
		crowds = checkLiving(w.devices, processes, w.tracker.forcedPods())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.living = processes
	w.samples.processes++
	for _, c := range crowds {
		if c.forced {
			w.overlaps[c.text] = true
		} else {
			w.report(c.finding)
		}
	}
}

// lookAtPods checks I2 and I4 in what is written, and I5 against what was read
// last of the others.
func (w *watcher) lookAtPods(ctx context.Context, elapsed time.Duration) {
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
	w.samples.pods++
	if up {
		w.samples.up += elapsed
	} else {
		elapsed = 0
	}
	w.suspect(findings, elapsed)
}

// suspect reports findings that are certain, and the others when they have
// lasted; w.mu is held.
func (w *watcher) suspect(findings []finding, elapsed time.Duration) {
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
		w.samples.longest = max(w.samples.longest, age)
		if age > repairTime {
			w.report(f)
		}
	}
	w.suspects = lasting
}

// report counts violations, each once; w.mu is held.
func (w *watcher) report(findings ...finding) {
	for _, f := range findings {
		if w.known[f.text] {
			continue
		}
		w.known[f.text] = true
		w.violations = append(w.violations, violation{finding: f, at: time.Now()})
		fmt.Fprintln(w.log, "VIOLATION", f)
	}
}

// partsUp says whether all parts run, and have for a moment.
func (w *watcher) partsUp() bool {
	now, complete := w.runningParts()
	w.mu.Lock()
	defer w.mu.Unlock()
	if now != w.parts {
		w.parts, w.partsSince = now, time.Now()
	}
	return complete && time.Since(w.partsSince) > settleTime
}

// runningParts returns which parts run, and whether these are all.
func (w *watcher) runningParts() (parts string, complete bool) {
	var now []string
	complete = true
	for _, name := range w.cluster.Processes() {
		pid, running := w.cluster.Running(name)
		complete = complete && running
		now = append(now, fmt.Sprint(name, pid))
	}
	want := map[string]int{devicePlugin: len(w.cluster.Nodes())}
	for _, program := range w.scheduler {
		want[program] = replicas
	}
	product, err := w.cluster.ContainerProcesses(slices.Collect(maps.Keys(want))...)
	if err != nil {
		return "", false
	}
	count := make(map[string]int)
	for _, p := range product {
		count[p.Program]++
		now = append(now, fmt.Sprint(p.Program, p.PID))
	}
	slices.Sort(now)
	return strings.Join(now, " "), complete && maps.Equal(count, want)
}

// rest waits until all that was begun has ended, and reports what then is not
// as it must be at rest.
func (w *watcher) rest(ctx context.Context) error {
	var findings []finding
	left, err := settle(ctx, func(ctx context.Context) string {
		var err error
		if findings, err = w.lookAtAll(ctx); err != nil {
			return err.Error()
		}
		return text(findings)
	})
	if err != nil {
		return err
	}
	if left != "" && len(findings) == 0 {
		return fmt.Errorf("look at all at rest: %s", left)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report(findings...)
	return nil
}

func text(findings []finding) string {
	var lines []string
	for _, f := range findings {
		lines = append(lines, f.String())
	}
	return strings.Join(lines, "\n")
}

// lookAtAll reads everything and returns what would be wrong at rest.
func (w *watcher) lookAtAll(ctx context.Context) ([]finding, error) {
	nodes, pods, err := nodesAndPods(ctx, w.client)
	if err != nil {
		return nil, err
	}
	given, err := w.allHeld(ctx)
	if err != nil {
		return nil, err
	}
	processes, err := living(w.cluster)
	if err != nil {
		return nil, err
	}
	out := checkShares(w.devices, pods)
	for _, p := range pods {
		out = append(out, checkAssignment(w.devices, p)...)
		out = append(out, checkRest(nodes, pods, p, given[p.node], processes)...)
	}
	return append(out, checkOrphans(pods, given)...), nil
}

// allHeld asks all kubelets what they have given, by node.
func (w *watcher) allHeld(ctx context.Context) (map[string][]holding, error) {
	out := make(map[string][]holding)
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range w.cluster.Nodes() {
		group.Go(func() error {
			given, err := held(ctx, w.cluster, node)
			mu.Lock()
			defer mu.Unlock()
			out[node] = given
			return err
		})
	}
	return out, group.Wait()
}

// leak reports memory that is held for no pod.
func (w *watcher) leak(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report(finding{invariant: leaked, text: fmt.Sprintf(format, args...)})
}

// idle reports a pod that fits on nodes, or is bound, and has not run for too long.
func (w *watcher) idle(p pod, nodes []string, facts string) {
	where := "is bound to " + p.node
	if p.node == "" {
		where = "fits on " + strings.Join(nodes, " and ")
	}
	f := p.finding(idle, false, "%s and is late to run after the last fault: %s", where, p.waits)
	f.facts = facts
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report(f)
}

// waited notes for how long pods that fit have waited.
func (w *watcher) waited(longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples.wait = max(w.samples.wait, longest)
}

// miscounted notes that kube-scheduler counted pods that were gone.
func (w *watcher) miscounted() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples.miscounts++
}

// count returns how many violations there are, of the named invariants or of
// all.
func (w *watcher) count(of ...invariant) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, v := range w.violations {
		if len(of) == 0 || slices.Contains(of, v.invariant) {
			n++
		}
	}
	return n
}

// findings returns the violations with what has happened around them, and the
// rest of what the watcher knows.
func (w *watcher) findings() Findings {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := Findings{samples: w.samples, Overlaps: len(w.overlaps)}
	for _, v := range w.violations {
		out.Violations = append(out.Violations, v.String()+"\n"+v.facts+w.journal.around(v.at, v.pods))
	}
	return out
}
