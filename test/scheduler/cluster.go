package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/gpumem/gpumem/cmd/gpumem-scheduler/plugin"
	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
	"github.com/gpumem/gpumem/pkg/scheduler/extender"
)

// schedulerName is the profile that the chart configures.
const schedulerName = "gpumem-scheduler"

// What cmd/gpumem-extender does at intervals.
const (
	repriceInterval = time.Second
	reviewInterval  = 5 * time.Second
	wakeInterval    = time.Second
	assumeLimit     = 30 * time.Second
)

var renders sync.Map // from the name of a file of ci/ to a function that returns its render

// rendered returns the render of the chart with ci/VALUES-values.yaml, by the test cluster's Helm.
func rendered(t testing.TB, values string) string {
	t.Helper()
	once, _ := renders.LoadOrStore(values, sync.OnceValues(func() (string, error) {
		chart, err := filepath.Abs("../../charts/gpumem")
		if err != nil {
			return "", err
		}
		cmd := exec.Command("go", "tool", "helm", "template", "gpumem", chart, "--namespace", "gpumem-system", "--kube-version", "v1.36.3",
			"--values", filepath.Join(chart, "ci", values+"-values.yaml"))
		cmd.Dir, cmd.Env = "../cluster/components", append(os.Environ(), "CGO_ENABLED=0", "KUBECONFIG=/nowhere")
		var problem strings.Builder
		cmd.Stderr = &problem
		text, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("render the chart: %w: %s", err, problem.String())
		}
		return string(text), nil
	}))
	text, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// configuration returns kube-scheduler's configuration as the chart renders it with the values
// of that name, read as kube-scheduler reads it.
func configuration(t testing.TB, values string) *config.KubeSchedulerConfiguration {
	t.Helper()
	for documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(rendered(t, values)), 4096); ; {
		var o v1.ConfigMap // or something else, with no such data
		if err := documents.Decode(&o); errors.Is(err, io.EOF) {
			t.Fatalf("%s-values.yaml makes no configuration of kube-scheduler", values)
		} else if err != nil || o.Kind != "ConfigMap" || !strings.Contains(o.Data["config.yaml"], "KubeSchedulerConfiguration") {
			continue
		}
		decoded, gvk, err := configscheme.Codecs.UniversalDecoder().Decode([]byte(o.Data["config.yaml"]), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg, ok := decoded.(*config.KubeSchedulerConfiguration)
		if !ok {
			t.Fatalf("%s-values.yaml makes a %T", values, decoded)
		}
		cfg.APIVersion = gvk.GroupVersion().String()
		if err := validation.ValidateKubeSchedulerConfiguration(cfg); err != nil {
			t.Fatal(err)
		}
		return cfg
	}
}

// cluster is an API server, an extender and a kube-scheduler.
type cluster struct {
	kubernetes.Interface // at once, whatever is delayed or cut

	api       *API
	cfg       *config.KubeSchedulerConfiguration
	state     *plugin.State // nil: the extender decides
	plain     bool          // neither decides
	unchecked bool          // a configuration that is wrong is started all the same
	unhinted  bool          // the plugin gives no hints
	late      time.Duration // how much later than kube-scheduler the plugin hears that a pod is gone
	scheduler *scheduler.Scheduler
	cache     *cache.Cache // the extender's, or the plugin's
	watch     *controller.Controller

	toScheduler, toExtender *Conn

	uncounted bool

	mu       sync.Mutex
	filter   []question
	filtered map[string]int // by the plugin: how many nodes for a pod, some of them twice
}

// question is one about which nodes a pod fits on, and the answer.
type question struct {
	pod        string
	asked, fit int // nodes
}

// setup changes a cluster before it is started.
type setup func(*cluster)

// allNodes makes kube-scheduler evaluate all nodes instead of a sample.
func allNodes(c *cluster) { c.cfg.PercentageOfNodesToScore = new(int32(100)) }

// uncounted has no question written down, which takes time.
func uncounted(c *cluster) { c.uncounted = true }

// second is the name of a second profile, and withSecond adds it.
const second = "second-scheduler"

func withSecond(c *cluster) {
	p := c.cfg.Profiles[0].DeepCopy()
	p.SchedulerName = second
	c.cfg.Profiles = append(c.cfg.Profiles, *p)
}

// start runs a cluster of these nodes and pods until the test ends.
func start(t testing.TB, objects []runtime.Object, setups ...setup) *cluster {
	t.Helper()
	server, err := NewAPI(objects...)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{api: server, filtered: make(map[string]int), cfg: configuration(t, "extender"), toScheduler: server.Connect(), toExtender: server.Connect()}
	for _, s := range setups {
		s(c)
	}
	if c.Interface, err = server.Connect().Client(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	if c.state == nil && !c.plain {
		url := c.startExtender(ctx, t, &running)
		for i := range c.cfg.Extenders {
			c.cfg.Extenders[i].URLPrefix = url
		}
	}
	c.startScheduler(ctx, t, &running)
	if c.plain {
		return c
	}
	c.eventually(t, 30*time.Second, "the cache is ready", func() bool { return c.watch.Missing() == "" })
	return c
}

// startExtender starts the extender as cmd/gpumem-extender puts it together, and returns
// where it serves.
func (c *cluster) startExtender(ctx context.Context, t testing.TB, running *sync.WaitGroup) string {
	t.Helper()
	client, err := c.toExtender.Client()
	if err != nil {
		t.Fatal(err)
	}
	log := zap.NewNop()
	c.cache = cache.New()
	if c.watch, err = controller.New(log, client, names(t), c.cache); err != nil {
		t.Fatal(err)
	}
	e := &extender.Extender{Neighbours: c.watch, Alone: true, Decider: decider.Decider{Binder: &binder.Binder{
		Self: "gpumem-extender", Reads: new(singleflight.Group),
		Log: log, Names: names(t), Cache: c.cache, Cluster: c.watch,
		Policies: ranking.Policies{GPU: placement.Binpack}, Now: time.Now, Missing: c.watch.Missing,
	}}}
	running.Go(func() { c.watch.Run(ctx) })
	running.Go(func() {
		wait.UntilWithContext(ctx, func(context.Context) { c.cache.Reprice() }, repriceInterval)
	})
	running.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) { e.ReviewAssumed(ctx, assumeLimit) }, reviewInterval)
	})
	running.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) { e.Wake(ctx, c.watch) }, wakeInterval)
	})
	server := httptest.NewServer(c.counted(e.Routes("test")))
	t.Cleanup(server.Close)
	return server.URL
}

// counted writes down what kube-scheduler asks about.
func (c *cluster) counted(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.uncounted || !strings.HasSuffix(r.URL.Path, "/filter") {
			handler.ServeHTTP(w, r)
			return
		}
		var args extenderv1.ExtenderArgs
		var result extenderv1.ExtenderFilterResult
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &args)
		}
		recorder := httptest.NewRecorder()
		if err == nil {
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			handler.ServeHTTP(recorder, r)
			err = json.Unmarshal(recorder.Body.Bytes(), &result)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		q := question{pod: args.Pod.Name}
		if args.NodeNames != nil {
			q.asked = len(*args.NodeNames)
		}
		if result.NodeNames != nil {
			q.fit = len(*result.NodeNames)
		}
		c.mu.Lock()
		c.filter = append(c.filter, q)
		c.mu.Unlock()
		maps.Copy(w.Header(), recorder.Header())
		w.WriteHeader(recorder.Code)
		_, _ = w.Write(recorder.Body.Bytes())
	})
}

// questions returns what kube-scheduler has asked about a pod.
func (c *cluster) questions(pod string) (about []question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.filter {
		if q.pod == pod {
			about = append(about, q)
		}
	}
	return about
}

// startScheduler starts kube-scheduler as cmd/kube-scheduler sets it up.
func (c *cluster) startScheduler(ctx context.Context, t testing.TB, running *sync.WaitGroup) {
	t.Helper()
	client, err := c.toScheduler.Client()
	if err != nil {
		t.Fatal(err)
	}
	factory := newInformers(client)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	t.Cleanup(broadcaster.Shutdown)
	cfg := c.cfg
	c.scheduler, err = scheduler.New(ctx, client, factory, nil, profile.NewRecorderFactory(broadcaster),
		scheduler.WithComponentConfigVersion(cfg.APIVersion),
		scheduler.WithProfiles(cfg.Profiles...),
		scheduler.WithPercentageOfNodesToScore(cfg.PercentageOfNodesToScore),
		scheduler.WithPodInitialBackoffSeconds(cfg.PodInitialBackoffSeconds),
		scheduler.WithPodMaxBackoffSeconds(cfg.PodMaxBackoffSeconds),
		scheduler.WithExtenders(cfg.Extenders...),
		scheduler.WithParallelism(cfg.Parallelism),
		scheduler.WithFrameworkOutOfTreeRegistry(c.registry()),
	)
	if err != nil {
		t.Fatal(err)
	}
	if c.state != nil {
		c.startPlugin(ctx, t, running)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := c.scheduler.WaitForHandlersSync(ctx); err != nil {
		t.Fatal(err)
	}
	running.Go(func() { c.scheduler.Run(ctx); factory.Shutdown() })
}

// eventually waits until something is so.
func (c *cluster) eventually(t testing.TB, limit time.Duration, what string, so func() bool) {
	t.Helper()
	if !holds(t, limit, so) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// holds reports whether something comes to be so within the limit.
func holds(t testing.TB, limit time.Duration, so func() bool) bool {
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, limit, true, func(context.Context) (bool, error) { return so(), nil })
	return err == nil
}

// add creates a node or a pod.
func (c *cluster) add(t testing.TB, objects ...runtime.Object) {
	t.Helper()
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	for _, o := range objects {
		if err := c.api.Add(o); err != nil {
			t.Fatal(err)
		}
	}
}

// pod returns a pod as it is now, or nil.
func (c *cluster) pod(t testing.TB, name string) *v1.Pod {
	t.Helper()
	list, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

// remove deletes a pod at once.
func (c *cluster) remove(t testing.TB, name string) {
	t.Helper()
	if err := c.CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
}

// changePod changes a pod.
func (c *cluster) changePod(t testing.TB, name string, change func(*v1.Pod)) {
	t.Helper()
	p := c.pod(t, name)
	change(p)
	if _, err := c.CoreV1().Pods(namespace).Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// changeNode changes a node.
func (c *cluster) changeNode(t testing.TB, name string, change func(*v1.Node)) {
	t.Helper()
	n, err := c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(n)
	if _, err := c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// waits waits until kube-scheduler has put a pod by, said so and seen what it has said:
// from now on it takes something new for the pod to be tried again. It puts a pod by
// before it says so, so this has to last.
func (c *cluster) waits(t testing.TB, name string) {
	t.Helper()
	const enough = 20
	times := 0
	c.eventually(t, 20*time.Second, name+" is put by", func() bool {
		now := c.pod(t, name)
		by := slices.ContainsFunc(c.scheduler.SchedulingQueue.UnschedulablePods(), func(p *v1.Pod) bool {
			return p.UID == now.UID && p.ResourceVersion == now.ResourceVersion
		})
		if times++; !by || !api.Considered(now) {
			times = 0
		}
		return times == enough
	})
}

// backoff is how long kube-scheduler may hold a pod back that it has been refused so
// many times.
func (c *cluster) backoff(refusals int) time.Duration {
	longest := time.Duration(c.cfg.PodMaxBackoffSeconds) * time.Second
	d := time.Duration(c.cfg.PodInitialBackoffSeconds) * time.Second
	for range refusals - 1 {
		d = min(2*d, longest)
	}
	return d
}

// bound waits until a pod is on a node, and returns where.
func (c *cluster) bound(t testing.TB, name string, more time.Duration) place {
	t.Helper()
	begin := time.Now()
	limit := *patience + more + c.backoff(len(c.questions(name)))
	var p *v1.Pod
	ok := holds(t, limit, func() bool {
		p = c.pod(t, name)
		return p != nil && p.Spec.NodeName != ""
	})
	if p == nil {
		t.Fatalf("%s is gone", name)
	}
	if !ok {
		t.Fatalf("%s is not bound within %v; questions and nodes that fit: %v; %+v", name, limit, c.questions(name), p.Status.Conditions)
	}
	t.Logf("%s: bound within %v, %d questions", name, time.Since(begin).Round(time.Millisecond), len(c.questions(name)))
	return placeOf(t, p)
}
