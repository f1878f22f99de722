package throughput

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
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
	Rounds int      // of each side
	Idle   []string // the program that is an idle extender; the path of a kubeconfig follows
	Log    io.Writer
}

// Sides are what there is to measure, in the order of a round: gpumem's extender,
// none, an idle one, that decides nothing, and gpumem's under a flood of scrapes.
func Sides() []string { return append(UsualSides(), flooded) }

// UsualSides are what is measured unless something else is asked for.
func UsualSides() []string { return []string{with, without, idle} }

const (
	with    = "with"
	without = "without"
	idle    = "idle"
	flooded = "flooded"
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
	cache, err := cluster.DefaultCacheDir()
	if err != nil {
		return Report{}, err
	}
	built, err := stack.Build(ctx, filepath.Join(cache, "throughput"), config.Log)
	if err != nil {
		return Report{}, err
	}
	err = cluster.With(ctx, cluster.Config{Name: "throughput", NoScheduler: true, Log: config.Log}, func(c *cluster.Cluster) error {
		b := &bench{Config: config, cluster: c, binary: built.Binary("gpumem-extender")}
		if err := b.prepare(ctx, built); err != nil {
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
	have := 0
	for _, nodes := range b.Nodes {
		fmt.Fprintf(b.Log, "make nodes: %d\n", nodes)
		if err := makeNodes(ctx, b.client, have, nodes); err != nil {
			return nil, fmt.Errorf("make nodes: %w", err)
		}
		have = nodes
		results, err := b.compare(ctx, nodes)
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
	binary   string                  // of the extender
	settings stack.SchedulerSettings // with the extender
}

func (b *bench) prepare(ctx context.Context, built *stack.Stack) error {
	rest, err := b.cluster.RESTConfig()
	if err != nil {
		return err
	}
	rest.ContentType = runtime.ContentTypeProtobuf
	if b.client, err = kubernetes.NewForConfig(rest); err != nil {
		return err
	}
	if b.settings, err = built.SchedulerSettings(ctx, b.cluster); err != nil {
		return err
	}
	_, err = b.client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := b.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the service account of pods: %w", err)
	}
	// It would find the nodes without a kubelet dead.
	return b.cluster.Kill(ctx, "controller-manager")
}

// command returns the program that a side has as its extender, or nothing.
func (b *bench) command(side string) []string {
	kubeconfig := b.cluster.SchedulerKubeconfig()
	switch side {
	case with, flooded:
		return []string{b.binary, "--kubeconfig=" + kubeconfig, "--choose-node"} // as the chart has it
	case idle:
		return append(slices.Clone(b.Idle), kubeconfig)
	default:
		return nil
	}
}

// compare measures each side in turn.
func (b *bench) compare(ctx context.Context, nodes int) (Comparison, error) {
	out := Comparison{Nodes: nodes, Rounds: make(map[string][]Round)}
	for i := range b.Rounds {
		for _, side := range b.Sides {
			r, err := b.round(ctx, side)
			if err != nil {
				return out, fmt.Errorf("%d nodes, round %d, extender: %s: %w", nodes, i+1, side, err)
			}
			fmt.Fprintf(b.Log, "%d nodes, extender: %-7s %v\n", nodes, side, r)
			out.Rounds[side] = append(out.Rounds[side], r)
		}
	}
	return out, nil
}

// round measures once, with a new scheduler.
func (b *bench) round(ctx context.Context, side string) (_ Round, err error) {
	started, err := b.start(side)
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
	if side == flooded {
		stop := b.flood(ctx)
		defer stop()
	}
	before, err := b.read(ctx, side, started)
	if err != nil {
		return Round{}, err
	}
	burst, err := b.batch(ctx, "burst", b.Pods, 0)
	if err != nil {
		return Round{}, err
	}
	after, err := b.read(ctx, side, started)
	if err != nil {
		return Round{}, err
	}
	stream, err := b.batch(ctx, "stream", b.Stream, time.Second/time.Duration(b.Rate))
	if err != nil {
		return Round{}, err
	}
	r := newRound(burst, stream, before, after)
	if pid, running := b.cluster.Running(extender); running {
		r.MemoryMiB, err = cluster.PeakMemory(pid)
	}
	return r, err
}

// reading is what processes tell of themselves at a moment, from their start.
type reading struct {
	processors map[string]time.Duration // on a processor, by process
	refused    map[string]int           // Binds, by reason; of gpumem's extender
}

func (b *bench) read(ctx context.Context, side string, started []string) (r reading, err error) {
	if r.processors, err = b.processorTimes(started); err != nil || side != with {
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
	one := &batch{client: b.client, name: name, scheduler: b.settings.Name, pods: pods, interval: interval}
	return one.run(ctx)
}

// start starts kube-scheduler, and the extender first where there is to be one.
func (b *bench) start(side string) (started []string, err error) {
	command := b.command(side)
	if command != nil {
		if err := b.cluster.Run(extender, command[0], command[1:]...); err != nil {
			return nil, err
		}
		started = append(started, extender)
	}
	config, err := b.settings.Config(command != nil)
	if err != nil {
		return started, err
	}
	if err := b.cluster.StartScheduler(config); err != nil {
		return started, err
	}
	return slices.Concat(started, []string{scheduler}), nil
}

// percentages returns what the configuration of kube-scheduler has as
// percentageOfNodesToScore, by side.
func (b *bench) percentages() (map[string]string, error) {
	out := make(map[string]string)
	for _, side := range b.Sides {
		config, err := b.settings.Config(b.command(side) != nil)
		if err != nil {
			return nil, err
		}
		if out[side], err = percentageOfNodesToScore(config); err != nil {
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
