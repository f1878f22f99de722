package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// nullAddress is the environment variable with which TestMain starts this program as an extender that
// decides nothing.
const nullAddress = "LOAD_NULL_EXTENDER"

func TestMain(m *testing.M) {
	if address := os.Getenv(nullAddress); address != "" {
		panic(http.ListenAndServe(address, nullExtender()))
	}
	os.Exit(m.Run())
}

// extenderProgram is a running extender, ours or the null one.
type extenderProgram struct {
	cmd     *exec.Cmd
	client  *http.Client
	address string // of the verbs
	probes  string // of the metrics; empty: none
}

// startExtender builds gpumem-extender and runs it with an API server until it has read all objects.
func startExtender(b *testing.B, api *apiServer) *extenderProgram {
	b.Helper()
	program := filepath.Join(b.TempDir(), "gpumem-extender")
	build := exec.Command("go", "build", "-o", program, "./cmd/gpumem-extender")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, text)
	}
	e := &extenderProgram{address: freeAddress(), probes: freeAddress()}
	// The comparison of the cache with the API server would miss the pods that this one forgets.
	e.cmd = exec.Command(program, "--kubeconfig="+api.kubeconfig(b), "--listen="+e.address, "--probe-listen="+e.probes, "--read-listen=127.0.0.1:0",
		"--choose-node", "--self-check-interval=0", "--kube-api-qps=100000", "--kube-api-burst=100000", "--log-level=error")
	e.start(b, "http://"+e.probes+"/readyz")
	return e
}

// startNull runs this program as an extender that decides nothing.
func startNull(b *testing.B) *extenderProgram {
	b.Helper()
	e := &extenderProgram{address: freeAddress()}
	e.cmd = exec.Command(os.Args[0])
	e.cmd.Env = append(os.Environ(), nullAddress+"="+e.address)
	e.start(b, "http://"+e.address+"/")
	return e
}

// freeAddress returns an address of the loopback on which nothing listens.
func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // the loopback has ports
	}
	defer listener.Close()
	return listener.Addr().String()
}

// start runs the program until the benchmark ends, and returns when a URL answers.
func (e *extenderProgram) start(b *testing.B, url string) {
	b.Helper()
	e.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * stressSchedulers}}
	e.cmd.Stderr = b.Output()
	if err := e.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		e.client.CloseIdleConnections()
		_ = e.cmd.Process.Kill() // it may have ended
		_ = e.cmd.Wait()
	})
	err := wait.PollUntilContextTimeout(b.Context(), 100*time.Millisecond, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := get(ctx, e.client, url)
		return err == nil, nil
	})
	if err != nil {
		b.Fatalf("%s does not answer: %v", url, err)
	}
}

// processorTime returns the processor time of the program.
func (e *extenderProgram) processorTime(b *testing.B) time.Duration {
	b.Helper()
	spent, err := processorTime(e.cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	return spent
}

// post calls a verb.
func (e *extenderProgram) post(ctx context.Context, verb string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.address+"/"+verb, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := e.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s %w", verb, response.Status, text, err)
	} else if out != nil {
		return json.Unmarshal(text, out)
	}
	return nil
}

// nullExtender answers filter with the first node, scores all nodes equal and binds nothing.
func nullExtender() http.Handler {
	mux := http.NewServeMux()
	handle(mux, "filter", func(args extenderv1.ExtenderArgs) any {
		first := (*args.NodeNames)[:1]
		return extenderv1.ExtenderFilterResult{NodeNames: &first}
	})
	handle(mux, "prioritize", func(args extenderv1.ExtenderArgs) any {
		scores := make(extenderv1.HostPriorityList, len(*args.NodeNames))
		for i, name := range *args.NodeNames {
			scores[i].Host = name
		}
		return scores
	})
	handle(mux, "bind", func(extenderv1.ExtenderBindingArgs) any { return extenderv1.ExtenderBindingResult{} })
	mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {})
	return mux
}

func handle[In any](mux *http.ServeMux, verb string, answer func(In) any) {
	mux.HandleFunc("POST /"+verb, func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		reply(w, http.StatusOK, answer(in))
	})
}

// BenchmarkVerbs measures the processor time of gpumem-extender for each verb, and divides it by the null
// extender's. "pod" is filter and bind of one pod after another, so that one node has changed since
// the last filter.
func BenchmarkVerbs(b *testing.B) {
	null := startNull(b)
	for _, nodes := range []int{500, 5000, 50000} {
		b.Run(strconv.Itoa(nodes), func(b *testing.B) {
			v := verbs{api: startAPI(nodes, 2*nodes)}
			b.Cleanup(v.api.Close)
			for i := range nodes {
				v.nodes = append(v.nodes, nodeName(i))
			}
			ours := startExtender(b, v.api)
			for _, verb := range []struct {
				name string
				call func(*testing.B, *extenderProgram)
			}{{"filter", v.filter}, {"prioritize", v.prioritize}, {"bind", v.bind}, {"pod", v.pod}} {
				b.Run(verb.name, func(b *testing.B) {
					verb.call(b, ours) // the first call finds nothing in memory
					verb.call(b, null)
					oursBefore, nullBefore := ours.processorTime(b), null.processorTime(b)
					for b.Loop() {
						verb.call(b, ours)
						verb.call(b, null)
					}
					took := ours.processorTime(b) - oursBefore
					b.ReportMetric(took.Seconds()*1000/float64(b.N), "cpu-ms")
					b.ReportMetric(float64(took)/float64(null.processorTime(b)-nullBefore), "of-null")
					b.ReportMetric(0, "ns/op")
				})
			}
		})
	}
}

// verbs calls an extender about all nodes.
type verbs struct {
	api   *apiServer
	nodes []string
	pods  int
}

func (v *verbs) filter(b *testing.B, e *extenderProgram) { v.node(b, e, uniquePod(0, 10)) }

func (v *verbs) prioritize(b *testing.B, e *extenderProgram) {
	if err := e.post(b.Context(), "prioritize", extenderv1.ExtenderArgs{Pod: uniquePod(0, 10), NodeNames: &v.nodes}, nil); err != nil {
		b.Fatal(err)
	}
}

// node returns the node that the extender chooses.
func (v *verbs) node(b *testing.B, e *extenderProgram, p *v1.Pod) string {
	var fits extenderv1.ExtenderFilterResult
	if err := e.post(b.Context(), "filter", extenderv1.ExtenderArgs{Pod: p, NodeNames: &v.nodes}, &fits); err != nil {
		b.Fatal(err)
	}
	if fits.NodeNames == nil || len(*fits.NodeNames) != 1 {
		b.Fatalf("filter: %+v, want one node", fits)
	}
	return (*fits.NodeNames)[0]
}

func (v *verbs) bind(b *testing.B, e *extenderProgram) {
	v.place(b, e, func(*v1.Pod) string { return v.nodes[v.pods%len(v.nodes)] })
}

func (v *verbs) pod(b *testing.B, e *extenderProgram) {
	v.place(b, e, func(p *v1.Pod) string { return v.node(b, e, p) })
}

// place binds a new pod, which then ends.
func (v *verbs) place(b *testing.B, e *extenderProgram, choose func(*v1.Pod) string) {
	v.pods++
	p := uniquePod(v.pods, 3)
	v.api.create(p)
	defer v.api.remove(p)
	if err := bindPod(b.Context(), e, p, choose(p)); err != nil {
		b.Fatal(err)
	}
}

func uniquePod(i int, units int64) *v1.Pod {
	p := fleetPod(namespace, "pod", i, units)
	p.UID = types.UID("uid-" + p.Name)
	return p
}

func bindPod(ctx context.Context, e *extenderProgram, p *v1.Pod, node string) error {
	var answer extenderv1.ExtenderBindingResult
	err := e.post(ctx, "bind", extenderv1.ExtenderBindingArgs{PodName: p.Name, PodNamespace: p.Namespace, PodUID: p.UID, Node: node}, &answer)
	if err == nil && answer.Error != "" {
		return refusal(answer.Error)
	}
	return err
}

// refusal is the extender's own error in an answer: another scheduler was faster.
type refusal string

func (r refusal) Error() string { return string(r) }

const (
	memoryNodes = 5000
	memoryPods  = 100000
)

// BenchmarkMemory measures the live heap of the extender: with nodes alone, and with pods.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		var live [2]float64
		var ready time.Duration
		for i, pods := range []int{0, memoryPods} {
			api := startAPI(memoryNodes, pods)
			b.Cleanup(api.Close)
			began := time.Now()
			e := startExtender(b, api)
			ready = time.Since(began)
			live[i] = e.liveHeap(b)
		}
		b.ReportMetric(live[0]/memoryNodes/1024, "per-node-KiB")
		b.ReportMetric((live[1]-live[0])/memoryPods/1024, "per-pod-KiB")
		b.ReportMetric(live[1]/(1<<20), "all-MiB")
		b.ReportMetric(ready.Seconds(), "ready-s") // the API server's creation of the objects included
		b.ReportMetric(0, "ns/op")
	}
}

// liveHeap returns the bytes that the collector has found in use: the next collection starts at twice
// that. Questions about all nodes fill what the extender keeps, and make garbage until the collector has
// run twice.
func (e *extenderProgram) liveHeap(b *testing.B) float64 {
	v := verbs{}
	for i := range memoryNodes {
		v.nodes = append(v.nodes, nodeName(i))
	}
	all := func(string) bool { return true }
	for first, i := -1.0, 0; ; i++ {
		text, err := get(b.Context(), e.client, "http://"+e.probes+"/metrics")
		if err != nil {
			b.Fatal(err)
		}
		collections := sum(string(text), "go_gc_duration_seconds_count", all)
		if first < 0 {
			first = collections
		}
		if collections >= first+2 {
			return sum(string(text), "go_memstats_next_gc_bytes", all) / 2
		}
		for _, units := range sizes {
			v.node(b, e, uniquePod(i, units))
		}
	}
}

// assignment is the annotation of a pod with its GPUs.
const assignment = "gpumem.dev/assignment"

const (
	stressSchedulers = 100
	stressNodes      = 100 // most of them are full
	askedNodes       = 50  // about one pod
	podsOfOne        = 40  // that a scheduler keeps running
	stressTime       = 30 * time.Second
)

// books count the memory that the bindings allocate on each GPU.
type books struct {
	mu     sync.Mutex
	shares map[types.UID][]device
	held   map[string]int64
	over   map[string]bool

	failed atomic.Int64
}

// charge counts a binding.
func (b *books) charge(binding *v1.Binding) {
	var a struct{ GPUs []device }
	if err := json.Unmarshal([]byte(binding.Annotations[assignment]), &a); err != nil || len(a.GPUs) == 0 {
		b.failed.Add(1)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares[binding.UID] = a.GPUs
	for _, g := range a.GPUs {
		b.held[g.UUID] += g.Units
		var node int
		if _, err := fmt.Sscanf(g.UUID, "GPU-%08x", &node); err != nil || b.held[g.UUID] > models[node%len(models)].units {
			b.over[g.UUID] = true
		}
	}
}

// release counts the end of a pod.
func (b *books) release(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.shares[uid] {
		b.held[g.UUID] -= g.Units
	}
	delete(b.shares, uid)
}

// BenchmarkStress lets a hundred schedulers filter and bind at one extender for half a minute, each as
// fast as it is answered.
func BenchmarkStress(b *testing.B) {
	for b.Loop() {
		k := &books{shares: make(map[types.UID][]device), held: make(map[string]int64), over: make(map[string]bool)}
		api := startAPI(stressNodes, 0)
		b.Cleanup(api.Close)
		api.bound = k.charge
		e := startExtender(b, api)
		ctx, cancel := context.WithTimeout(b.Context(), stressTime)
		waits := make([][]float64, stressSchedulers)
		var group sync.WaitGroup
		for i := range stressSchedulers {
			group.Go(func() { waits[i] = schedule(ctx, e, api, k, i) })
		}
		group.Wait()
		cancel()
		all := slices.Sorted(slices.Values(slices.Concat(waits...)))
		if len(all) == 0 {
			b.Fatalf("no pod was bound; %d calls failed", k.failed.Load())
		}
		b.ReportMetric(float64(len(all))/stressTime.Seconds(), "pods/s")
		b.ReportMetric(quantile(all, 0.50), "p50-ms") // of filter and bind
		b.ReportMetric(quantile(all, 0.99), "p99-ms")
		b.ReportMetric(float64(k.failed.Load()), "errors")
		b.ReportMetric(float64(len(k.over)), "overcommitted") // GPUs, at any time
		b.ReportMetric(0, "ns/op")
	}
}

// schedule places pods until the time is over, and returns the milliseconds that each bound pod took.
// One of its pods ends when it has many or when the next fits nowhere.
func schedule(ctx context.Context, e *extenderProgram, api *apiServer, b *books, self int) (waits []float64) {
	random := rand.New(rand.NewPCG(uint64(self), 0))
	var running []*v1.Pod
	for i := 0; ctx.Err() == nil; i++ {
		p := uniquePod(self*100000+i, sizes[random.IntN(len(sizes))])
		api.create(p)
		began := time.Now()
		fits, err := place(ctx, e, random, p)
		if err != nil && !errors.As(err, new(refusal)) && ctx.Err() == nil {
			b.failed.Add(1)
		}
		if fits && err == nil {
			waits = append(waits, time.Since(began).Seconds()*1000)
			running = append(running, p)
		} else {
			api.remove(p)
		}
		if len(running) == podsOfOne || len(running) > 0 && !fits {
			k := random.IntN(len(running))
			b.release(running[k].UID) // before the extender learns of it
			api.remove(running[k])
			running = slices.Delete(running, k, k+1)
		}
	}
	return waits
}

// place filters and binds one pod.
func place(ctx context.Context, e *extenderProgram, random *rand.Rand, p *v1.Pod) (fits bool, err error) {
	first := random.IntN(stressNodes - askedNodes)
	var names []string
	for i := range askedNodes {
		names = append(names, nodeName(first+i))
	}
	var answer extenderv1.ExtenderFilterResult
	if err := e.post(ctx, "filter", extenderv1.ExtenderArgs{Pod: p, NodeNames: &names}, &answer); err != nil {
		return false, err
	}
	if answer.Error != "" {
		return false, fmt.Errorf("filter: %s", answer.Error)
	}
	if answer.NodeNames == nil || len(*answer.NodeNames) == 0 {
		return false, nil
	}
	return true, bindPod(ctx, e, p, (*answer.NodeNames)[0])
}
