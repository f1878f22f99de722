package throughput

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// Config says what to measure.
type Config struct {
	Nodes  []int    // sizes of the fleet, ascending
	Pods   int      // that are made at once
	Rate   int      // of the stream, in pods per second
	Stream int      // pods of it
	Sides  []string // that are measured, of Sides
	Rounds int      // of each side, at most
	Idle   []string // the program that is an idle extender; the path of a kubeconfig follows
	Log    io.Writer

	// Time is for the rounds of all sizes together, an equal part for each and what those
	// before have left. Where it is short there are fewer rounds, of each side as many, and
	// one at least. 0: it does not matter.
	Time time.Duration
}

// Sides are what there is to measure, in the order of a round.
func Sides() (names []string) {
	for _, s := range sides {
		names = append(names, s.name)
	}
	return names
}

// UsualSides are what is measured unless something else is asked for.
func UsualSides() []string { return []string{plain, off, plugin, extended, sampled} }

const (
	plain    = "plain"    // kube-scheduler alone
	off      = "off"      // gpumem-scheduler, whose plugin is told of another resource than the pods ask for
	plugin   = "plugin"   // gpumem-scheduler as the chart has it
	all      = "all"      // the same, and kube-scheduler looks at all nodes
	extended = "extender" // gpumem's extender as the chart has it: it names one node of all
	sampled  = "sampled"  // the same, asked about as many nodes as by default
	scored   = "scored"   // the extender names all nodes that fit, and scores them
	idle     = "idle"     // an extender that decides nothing
	flooded  = "flooded"  // the extender as the chart has it, under a flood of scrapes
)

// side is what a round measures.
type side struct {
	name     string
	extender func(b *bench) (command []string) // nil: there is none
	flags    []string                          // of gpumem-scheduler; nil: kube-scheduler itself
	plain    bool                              // nothing of gpumem is in the configuration
	percent  *int                              // of nodes to score, see stack.Score; nil: as the chart has it
	flooded  bool
}

var (
	namesOneNode = ownExtender("--choose-node") // as the chart has it

	sides = []side{
		{name: plain, plain: true},
		{name: off, flags: []string{"--resource-domain=other.example"}},
		{name: plugin, flags: []string{}},
		{name: all, flags: []string{}, percent: new(100)},
		{name: extended, extender: namesOneNode},
		{name: sampled, extender: namesOneNode, percent: new(0)},
		{name: scored, extender: ownExtender()},
		{name: idle, extender: (*bench).idleExtender},
		{name: flooded, extender: namesOneNode, flooded: true},
	}
)

const (
	// batchTime is how long the pods of a batch may take.
	batchTime = 5 * time.Minute
	// warmUp is how many pods show that all is up, and that connections are open.
	warmUp = 50
)

// The processes of the cluster that are started and ended here.
const (
	scheduler = "scheduler"
	extender  = "extender"
)

// Run starts a control plane, measures, and takes it away.
func Run(ctx context.Context, config Config) (report Report, err error) {
	err = stack.With(ctx, cluster.Config{Name: "throughput", NoScheduler: true, Log: config.Log}, func(c *cluster.Cluster, built *stack.Stack) error {
		b := &bench{Config: config, cluster: c, built: built}
		if err := b.prepare(ctx); err != nil {
			return err
		}
		if report.PercentageOfNodesToScore, err = b.percentages(); err != nil {
			return err
		}
		report.Sizes, err = b.sizes(ctx)
		return err
	})
	return report, err
}

// sizes compares with each size of the fleet, one after the other.
func (b *bench) sizes(ctx context.Context) (out []Comparison, err error) {
	have, began := 0, time.Now()
	for i, nodes := range b.Nodes {
		fmt.Fprintf(b.Log, "make nodes: %d\n", nodes)
		if err := makeNodes(ctx, b.client, have, nodes); err != nil {
			return nil, fmt.Errorf("make nodes: %w", err)
		}
		have = nodes
		var until time.Time
		if b.Time > 0 {
			until = began.Add(b.Time * time.Duration(i+1) / time.Duration(len(b.Nodes)))
		}
		results, err := b.compare(ctx, nodes, until)
		if err != nil {
			return nil, err
		}
		out = append(out, results)
	}
	return out, nil
}

// bench is a control plane with no scheduler yet.
type bench struct {
	Config
	cluster  *cluster.Cluster
	client   kubernetes.Interface
	built    *stack.Stack
	extender stack.SchedulerSettings // of the chart in that mode
	plugin   stack.SchedulerSettings
}

func (b *bench) prepare(ctx context.Context) error {
	rest, err := b.cluster.RESTConfig()
	if err != nil {
		return err
	}
	rest.ContentType = runtime.ContentTypeProtobuf
	if b.client, err = kubernetes.NewForConfig(rest); err != nil {
		return err
	}
	if b.extender, err = b.built.SchedulerSettings(ctx, b.cluster, "extender"); err != nil {
		return err
	}
	if b.plugin, err = b.built.SchedulerSettings(ctx, b.cluster, "plugin"); err != nil {
		return err
	}
	if _, err = b.cluster.MakeNamespace(ctx, namespace); err != nil {
		return err
	}
	// It would find the nodes without a kubelet dead.
	return b.cluster.Kill(ctx, "controller-manager")
}

// ownExtender is gpumem's, with flags.
func ownExtender(flags ...string) func(b *bench) []string {
	return func(b *bench) []string {
		return append([]string{b.built.Binary("gpumem-extender"), "--kubeconfig=" + b.cluster.SchedulerKubeconfig()}, flags...)
	}
}

func (b *bench) idleExtender() []string {
	return append(slices.Clone(b.Idle), b.cluster.SchedulerKubeconfig())
}

// config returns kube-scheduler's configuration of a side.
func (b *bench) config(s side) ([]byte, error) {
	settings := b.extender
	if s.flags != nil {
		settings = b.plugin
	}
	var changes []func(map[string]any)
	if s.plain {
		changes = append(changes, settings.Plain)
	}
	if s.percent != nil {
		changes = append(changes, stack.Score(*s.percent))
	}
	return settings.Config(changes...)
}

// measured are the sides that are.
func (b *bench) measured() []side {
	return slices.DeleteFunc(slices.Clone(sides), func(s side) bool { return !slices.Contains(b.Sides, s.name) })
}

// compare measures each side in turn. No turn after the first is begun that would end too late
// if it took as long as the one before.
func (b *bench) compare(ctx context.Context, nodes int, until time.Time) (Comparison, error) {
	out := Comparison{Nodes: nodes, Rounds: make(map[string][]Round)}
	var began time.Time
	for i := range b.Rounds {
		if i > 0 && tooLate(began, time.Now(), until) {
			fmt.Fprintf(b.Log, "%d nodes: %d of %d rounds, for want of time\n", nodes, i, b.Rounds)
			break
		}
		began = time.Now()
		for _, s := range b.measured() {
			r, err := b.round(ctx, s)
			if err != nil {
				return out, fmt.Errorf("%d nodes, round %d, %s: %w", nodes, i+1, s.name, err)
			}
			fmt.Fprintf(b.Log, "%d nodes, %-8s %v\n", nodes, s.name, r)
			out.Rounds[s.name] = append(out.Rounds[s.name], r)
		}
	}
	return out, nil
}

// tooLate reports whether a turn would end too late that begins now and takes as long as the one
// that began before.
func tooLate(before, now, until time.Time) bool {
	return !until.IsZero() && now.Add(now.Sub(before)).After(until)
}

// round measures once, with a new scheduler.
func (b *bench) round(ctx context.Context, s side) (_ Round, err error) {
	started, err := b.start(ctx, s)
	defer func() {
		for _, name := range started {
			err = errors.Join(err, b.cluster.Kill(ctx, name))
		}
	}()
	if err != nil {
		return Round{}, err
	}
	if _, err := b.batch(ctx, "warm", warmUp, 0); err != nil {
		return Round{}, err
	}
	if s.flooded {
		stop := b.flood(ctx)
		defer stop()
	}
	before, err := b.counts(ctx, s)
	if err != nil {
		return Round{}, err
	}
	// Last, for to be asked for counts takes a processor too.
	if before.processors, err = b.processorTimes(started); err != nil {
		return Round{}, err
	}
	burst, err := b.batch(ctx, "burst", b.Pods, 0)
	if err != nil {
		return Round{}, err
	}
	spent, err := b.processorTimes(started)
	if err != nil {
		return Round{}, err
	}
	after, err := b.counts(ctx, s)
	if err != nil {
		return Round{}, err
	}
	after.processors = spent
	stream, err := b.batch(ctx, "stream", b.Stream, time.Second/time.Duration(b.Rate))
	if err != nil {
		return Round{}, err
	}
	r := newRound(burst, stream, before, after)
	for _, name := range started {
		if pid, running := b.cluster.Running(name); running {
			if r.MemoryMiB[name], err = cluster.PeakMemory(pid); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// reading is what processes tell of themselves at a moment, from their start.
type reading struct {
	processors map[string]time.Duration // on a processor, by process
	refused    map[string]int           // Binds, by reason, where gpumem binds
	requests   map[string]int           // that the API server has answered, by verb and resource
}

// counts reads all but the times on a processor.
func (b *bench) counts(ctx context.Context, s side) (r reading, err error) {
	if r.requests, err = b.requests(ctx); err != nil || s.plain || s.name == idle || s.flooded {
		return r, err
	}
	r.refused, err = b.refusedBinds(ctx)
	return r, err
}

// processorTimes returns how long processes have been on a processor: those
// named, and those that serve them.
func (b *bench) processorTimes(names []string) (map[string]time.Duration, error) {
	out := make(map[string]time.Duration)
	for _, name := range append([]string{"apiserver", "etcd"}, names...) {
		pid, running := b.cluster.Running(name)
		if !running {
			return nil, fmt.Errorf("%s has ended; see %s", name, b.cluster.LogFile(name))
		}
		spent, err := cluster.ProcessorTime(pid)
		if err != nil {
			return nil, err
		}
		out[name] = spent
	}
	return out, nil
}

func (b *bench) batch(ctx context.Context, name string, pods int, interval time.Duration) (figures, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, batchTime, errors.New("not all pods were bound in time"))
	defer cancel()
	one := &batch{client: b.client, name: name, scheduler: b.extender.Name, pods: pods, interval: interval}
	return one.run(ctx)
}

// start starts kube-scheduler, and the extender first where there is to be one.
func (b *bench) start(ctx context.Context, s side) (started []string, err error) {
	if s.extender != nil {
		command := s.extender(b)
		if err := b.cluster.Run(extender, command[0], command[1:]...); err != nil {
			return nil, err
		}
		started = append(started, extender)
	}
	config, err := b.config(s)
	if err != nil {
		return started, err
	}
	program := append([]string{b.built.Binary("gpumem-scheduler")}, s.flags...)
	if s.flags == nil {
		plain, err := b.cluster.Scheduler(ctx)
		if err != nil {
			return started, err
		}
		program = []string{plain}
	}
	if err := b.cluster.StartScheduler(config, program...); err != nil {
		return started, err
	}
	return append(started, scheduler), nil
}

// percentages returns what the configuration of kube-scheduler has as
// percentageOfNodesToScore, by side.
func (b *bench) percentages() (map[string]string, error) {
	out := make(map[string]string)
	for _, s := range b.measured() {
		config, err := b.config(s)
		if err != nil {
			return nil, err
		}
		if out[s.name], err = percentageOfNodesToScore(config); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// percentageOfNodesToScore reads a KubeSchedulerConfiguration of one profile.
func percentageOfNodesToScore(config []byte) (string, error) {
	type percentage struct {
		Value *int `json:"percentageOfNodesToScore"`
	}
	var read struct {
		percentage
		Profiles []percentage
	}
	if err := yaml.Unmarshal(config, &read); err != nil {
		return "", fmt.Errorf("the configuration of kube-scheduler: %w", err)
	}
	for _, one := range append(read.Profiles, read.percentage) {
		if one.Value != nil && *one.Value != 0 {
			return strconv.Itoa(*one.Value), nil
		}
	}
	return "by the number of nodes", nil
}
