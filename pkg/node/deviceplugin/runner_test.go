package deviceplugin

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

const resourceName = "gpumem.dev/gpu-mem"

// registry implements the kubelet's end: it calls back each registered plugin. Like the kubelet, it stores only
// the last client of a resource, and closes this client when any client of the resource stops.
// (k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, runClient)
type registry struct {
	pluginapi.UnimplementedRegistrationServer
	dir        string
	registered chan *pluginapi.RegisterRequest
	lists      chan int // units of each list
	refuse     error

	mu     sync.Mutex
	client *grpc.ClientConn // nil if there is none
}

// forget closes the current client, if any.
func (r *registry) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		_ = r.client.Close() // ends its stream
		r.client = nil
	}
}

// hearsNothing verifies that for a while no plugin registers, sends a list or ends its stream.
func (r *registry) hearsNothing(t *testing.T) {
	t.Helper()
	select {
	case <-r.registered:
		t.Error("registered once more")
	case n := <-r.lists:
		t.Errorf("the kubelet has heard %d", n)
	case <-time.After(3 * poll):
	}
}

func (r *registry) Register(_ context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if r.refuse != nil {
		return nil, r.refuse
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(r.dir, req.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.client = conn
	r.mu.Unlock()
	client := pluginapi.NewDevicePluginClient(conn)
	go func() {
		defer conn.Close()
		stream, err := client.ListAndWatch(context.Background(), &pluginapi.Empty{})
		for err == nil {
			var list *pluginapi.ListAndWatchResponse
			if list, err = stream.Recv(); err == nil {
				r.lists <- len(list.GetDevices())
			}
		}
		r.forget()
		r.lists <- -1
	}()
	r.registered <- req
	return &pluginapi.Empty{}, nil
}

// startKubelet starts a kubelet, which first removes all sockets and then creates its own socket.
func startKubelet(t *testing.T, dir string, refuse error) (r *registry, stop func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // a killed kubelet leaves its socket
	r = &registry{dir: dir, registered: make(chan *pluginapi.RegisterRequest, 10), lists: make(chan int, 100), refuse: refuse}
	end := serving(t, listener, func(server *grpc.Server) { pluginapi.RegisterRegistrationServer(server, r) })
	return r, func() {
		end()
		r.forget()
	}
}

// serving serves on a listener until end is called.
func serving(t *testing.T, listener net.Listener, register func(*grpc.Server)) (end func()) {
	t.Helper()
	server := grpc.NewServer()
	register(server)
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	return func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(plugintest.Patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// running starts a runner, and returns a function that stops it.
func running(t *testing.T, dir string) (r *Runner, stop func()) {
	t.Helper()
	return takingOver(t, dir, nil)
}

// takingOver is like running, and calls takeOver before each registration.
func takingOver(t *testing.T, dir string, takeOver func()) (r *Runner, stop func()) {
	t.Helper()
	n := newNode(t, nil, nil)
	r = NewRunner(dir, zap.NewNop(), Endpoint{resourceName, n.Server})
	if takeOver != nil {
		r.TakeOver = func() error { takeOver(); return nil }
	}
	return r, run(t, r)
}

// listed starts a kubelet, and a runner that has sent it the device list. The caller must call stop.
func listed(t *testing.T) (dir string, kubelet *registry, r *Runner, stop func()) {
	t.Helper()
	dir = t.TempDir()
	kubelet, end := startKubelet(t, dir, nil)
	t.Cleanup(end)
	r, stop = running(t, dir)
	receive(t, kubelet.registered)
	receive(t, kubelet.lists)
	return dir, kubelet, r, stop
}

// A process gives way while another process serves, and then retries TakeOver until it succeeds.
func TestRunnerWaitsForItsTurn(t *testing.T) {
	dir, kubelet, _, stop := listed(t)
	var ready atomic.Bool
	gaveWay := make(chan struct{})
	r := NewRunner(dir, zap.NewNop(), Endpoint{resourceName, newNode(t, nil, nil).Server})
	r.GiveWay = sync.OnceFunc(func() { close(gaveWay) })
	r.TakeOver = func() error {
		if !ready.Load() {
			return errors.New("not yet")
		}
		return nil
	}
	defer run(t, r)()
	receive(t, gaveWay)
	stop()
	receive(t, kubelet.lists) // the first process has ended
	says(t, r, "not yet")
	kubelet.hearsNothing(t)
	ready.Store(true)
	receive(t, kubelet.registered)
}

func run(t *testing.T, r *Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := receive(t, done); err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// busy is a plugin whose Allocate waits for the test.
type busy struct {
	pluginapi.DevicePluginServer
	began, answer chan struct{}
}

func (b *busy) Allocate(ctx context.Context, _ *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	b.began <- struct{}{}
	select {
	case <-b.answer:
		return &pluginapi.AllocateResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// The next process loads the grants only after the previous process has ended its pending calls of all
// resources, because these calls record grants.
func TestRunnerTakesOverAfterTheLastCall(t *testing.T) {
	const cores = "gpumem.dev/gpu-core"
	for name, tc := range map[string]struct {
		resource string
		answers  bool // Allocate returns within stopGrace
	}{
		"memory": {resourceName, true}, "cores": {cores, true}, "hangs": {resourceName, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			kubelet, end := startKubelet(t, dir, nil)
			defer end()
			var gaveWay atomic.Bool
			endpoints := func() (b *busy, of []Endpoint) {
				n := newNode(t, nil, nil)
				b = &busy{n.Server, make(chan struct{}, 1), make(chan struct{})}
				for _, resource := range []string{resourceName, cores} {
					of = append(of, Endpoint{resource, n.Server})
					if resource == tc.resource {
						of[len(of)-1].Plugin = b
					}
				}
				return b, of
			}
			b, of := endpoints()
			first := NewRunner(dir, zap.NewNop(), of...)
			first.GiveWay = func() { gaveWay.Store(true) }
			stopFirst := run(t, first)
			for range of {
				receive(t, kubelet.registered)
				receive(t, kubelet.lists)
			}
			<-first.Listed()
			answered := make(chan error, 1)
			go func() {
				answered <- dial(t.Context(), first.path(Endpoint{Resource: tc.resource}), func(ctx context.Context, conn *grpc.ClientConn) error {
					_, err := pluginapi.NewDevicePluginClient(conn).Allocate(ctx, &pluginapi.AllocateRequest{})
					return err
				})
			}()
			receive(t, b.began)

			_, of = endpoints()
			second := NewRunner(dir, zap.NewNop(), of...)
			takenOver := make(chan struct{}, 1)
			second.TakeOver = func() error { takenOver <- struct{}{}; return nil }
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				stopFirst()
			}()
			defer run(t, second)()
			if tc.answers {
				select {
				case <-takenOver:
					t.Error("the second process takes over while the first answers a call")
				case <-time.After(3 * poll):
				}
				close(b.answer)
			}
			err := receive(t, answered)
			if (err == nil) != tc.answers {
				t.Errorf("the call ended with %v", err)
			}
			receive(t, takenOver)
			receive(t, ended)
			if gaveWay.Load() == tc.answers {
				t.Errorf("the first process gave way: %t", gaveWay.Load())
			}
			for range of {
				receive(t, kubelet.registered)
			}
		})
	}
}

func TestRunnerRegistersAgainAndAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "device-plugins") // does not exist yet
	r, stop := running(t, dir)
	if r.Missing() == "" {
		t.Error("registered with no kubelet")
	}
	select {
	case <-r.Listed():
		t.Error("devices are listed to no kubelet")
	default:
	}
	want := &pluginapi.RegisterRequest{
		Version: "v1beta1", Endpoint: "gpumem-gpumem.dev_gpu-mem.sock", ResourceName: resourceName,
		Options: &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true},
	}
	var kubelet *registry
	for range 6 {
		var end func()
		kubelet, end = startKubelet(t, dir, nil)
		if diff := cmp.Diff(want, receive(t, kubelet.registered), protocmp.Transform()); diff != "" {
			t.Errorf("registration (-want +got):\n%s", diff)
		}
		if n := receive(t, kubelet.lists); n != 16 {
			t.Errorf("%d units, want 16", n)
		}
		receive(t, r.Listed())
		end()
		if n := receive(t, kubelet.lists); n != -1 {
			t.Errorf("%d units after the kubelet's end", n)
		}
	}
	last, end := startKubelet(t, dir, nil)
	defer end()
	receive(t, last.registered)
	receive(t, last.lists)
	stop()
	if n := receive(t, last.lists); n != -1 {
		t.Errorf("%d units after the end", n)
	}
	if _, err := os.Stat(filepath.Join(dir, want.GetEndpoint())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// waitOrReplaced returns as soon as there is a new kubelet.
func TestAnotherKubeletEndsThePause(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path)
	before, err := statSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	rested := make(chan bool)
	go func() { rested <- waitOrReplaced(t.Context(), time.Hour, before) }()
	write(path + ".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if !receive(t, rested) {
		t.Error("no other kubelet is seen")
	}
	if !waitOrReplaced(t.Context(), poll, before) || waitOrReplaced(t.Context(), poll, socket{path: path + ".none"}) {
		t.Error("rest sees another kubelet where there is none, or none where there is")
	}
}

// A starting kubelet removes the sockets of plugins, and then creates its own. A plugin that listens earlier
// could lose its socket at any moment.
func TestRunnerListensForNoKubeletThatIsGone(t *testing.T) {
	dir := t.TempDir()
	kubelet, end := startKubelet(t, dir, nil)
	r, stop := running(t, dir)
	defer stop()
	receive(t, kubelet.registered)
	receive(t, kubelet.lists)
	end()
	says(t, r, "wait for the kubelet")
	if _, err := os.Stat(r.path(r.endpoints[0])); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the plugin's socket: %v, want none while no kubelet answers", err)
	}
	kubelet, end = startKubelet(t, dir, nil)
	defer end()
	receive(t, kubelet.registered)
}

// A call to a missing socket fails without waiting for the timeout.
func TestNobodyAnswersAtASocketThatIsGone(t *testing.T) {
	err := callPlugin(t.Context(), filepath.Join(t.TempDir(), "gone.sock"))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("error %v, want %v", err, codes.Unavailable)
	}
}

func TestRunnerSeesThatItsSocketIsGone(t *testing.T) {
	_, kubelet, r, stop := listed(t)
	defer stop()
	if err := os.Remove(r.path(r.endpoints[0])); err != nil {
		t.Fatal(err)
	}
	receive(t, kubelet.registered)
}

func TestRunnerSeesThatTheKubeletNoLongerListens(t *testing.T) {
	dir := t.TempDir()
	kubelet, end := startKubelet(t, dir, nil)
	defer end()
	_, stop := running(t, dir)
	defer stop()
	for range 3 {
		receive(t, kubelet.registered)
		if n := receive(t, kubelet.lists); n != 16 {
			t.Errorf("%d units, want 16", n)
		}
		kubelet.forget()
		if n := receive(t, kubelet.lists); n != -1 {
			t.Errorf("%d units of one that was forgotten", n)
		}
	}
}

// If the kubelet drops the plugin each time, the runner registers at growing intervals.
func TestRunnerWaitsLongerEachTimeItIsDropped(t *testing.T) {
	dir := t.TempDir()
	kubelet, end := startKubelet(t, dir, nil)
	defer end()
	_, stop := running(t, dir)
	defer stop()
	var first time.Time
	for i := range 3 {
		receive(t, kubelet.registered)
		if receive(t, kubelet.lists); i == 0 {
			first = time.Now()
		}
		if i == 2 {
			break
		}
		kubelet.forget()
		receive(t, kubelet.lists)
	}
	if took := time.Since(first); took < 6*poll {
		t.Errorf("registered again twice within %s, want %s at least", took, 6*poll)
	}
}

// A plugin whose pod was force-deleted still serves when the next plugin starts. When the old plugin ends, the
// kubelet would drop the next plugin if it had registered already.
func TestRunnerWaitsForTheOneBefore(t *testing.T) {
	dir, kubelet, _, stopFirst := listed(t)
	takenOver := make(chan struct{}, 1)
	second, stop := takingOver(t, dir, func() { takenOver <- struct{}{} })
	defer stop()
	says(t, second, "another process serves")
	select {
	case <-takenOver:
		t.Error("the second reads the record of the first, which still writes it")
	default:
	}
	stopFirst()
	receive(t, takenOver)
	if n := receive(t, kubelet.lists); n != -1 {
		t.Errorf("%d units, want the end of the first", n)
	}
	receive(t, kubelet.registered)
	if n := receive(t, kubelet.lists); n != 16 {
		t.Errorf("%d units, want 16", n)
	}
	kubelet.hearsNothing(t)
}

// slow is a plugin of another process with slow answers.
type slow struct {
	pluginapi.UnimplementedDevicePluginServer
	asked  chan struct{}
	answer chan struct{}
}

func (s *slow) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	s.asked <- struct{}{}
	<-s.answer
	return &pluginapi.DevicePluginOptions{}, nil
}

// serve serves a plugin on the runner's socket, like another process.
func serve(t *testing.T, dir string, plugin pluginapi.DevicePluginServer) (path string) {
	t.Helper()
	path = filepath.Join(dir, "gpumem-gpumem.dev_gpu-mem.sock")
	listener, err := net.Listen("unix", path+".other")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".other", path); err != nil { // atomically, over any existing socket
		t.Fatal(err)
	}
	t.Cleanup(serving(t, listener, func(server *grpc.Server) { pluginapi.RegisterDevicePluginServer(server, plugin) }))
	return path
}

func TestRunnerThatEndsLeavesTheSocketOfAnother(t *testing.T) {
	dir := t.TempDir()
	_, end := startKubelet(t, dir, nil)
	defer end()
	other := &slow{asked: make(chan struct{}, 100), answer: make(chan struct{})}
	path := serve(t, dir, other)
	defer close(other.answer)
	_, stop := running(t, dir)
	receive(t, other.asked)
	stop()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the other's socket: %v", err)
	}
}

// A process does not remove a socket that another process has put in its place.
func TestRunnerRemovesNoSocketButItsOwn(t *testing.T) {
	dir, _, r, stop := listed(t)
	other := &slow{asked: make(chan struct{}, 100), answer: make(chan struct{})}
	close(other.answer)
	path := serve(t, dir, other)
	says(t, r, "another process serves")
	stop()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the other's socket: %v", err)
	}
}

// Another client of ListAndWatch, for example an administrator's, may connect and disconnect.
func TestRunnerIsNotDroppedWhileSomebodyListens(t *testing.T) {
	_, kubelet, r, stop := listed(t)
	defer stop()
	err := dial(t.Context(), r.path(r.endpoints[0]), func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := pluginapi.NewDevicePluginClient(conn).ListAndWatch(ctx, &pluginapi.Empty{})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	kubelet.hearsNothing(t)
}

// deaf is a kubelet that registers plugins and does not call them.
type deaf struct {
	pluginapi.UnimplementedRegistrationServer
	registered chan struct{}
}

func (d *deaf) Register(context.Context, *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	d.registered <- struct{}{}
	return &pluginapi.Empty{}, nil
}

func TestRunnerRegistersAgainWhereTheKubeletDoesNotAsk(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	d := &deaf{registered: make(chan struct{}, 10)}
	defer serving(t, listener, func(server *grpc.Server) { pluginapi.RegisterRegistrationServer(server, d) })()
	r, stop := running(t, dir)
	defer stop()
	receive(t, d.registered)
	says(t, r, "does not ask for its devices")
	receive(t, d.registered)
}

// A killed process that hangs in the driver keeps its socket, and answers no calls.
func TestRunnerTakesOverFromOneThatHangs(t *testing.T) {
	dir := t.TempDir()
	kubelet, end := startKubelet(t, dir, nil)
	defer end()
	hangs, err := net.Listen("unix", filepath.Join(dir, "gpumem-gpumem.dev_gpu-mem.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	_, stop := running(t, dir)
	defer stop()
	receive(t, kubelet.registered)
}

func TestRunnerReplacesASocketThatWasLeft(t *testing.T) {
	dir := t.TempDir()
	kubelet, end := startKubelet(t, dir, nil)
	defer end()
	left, err := net.Listen("unix", filepath.Join(dir, "gpumem-gpumem.dev_gpu-mem.sock"))
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	_, stop := running(t, dir)
	defer stop()
	receive(t, kubelet.registered)
}

func TestRunnerSaysWhyItIsNotRegistered(t *testing.T) {
	dir := t.TempDir()
	_, end := startKubelet(t, dir, errors.New("unsupported version"))
	defer end()
	r, stop := running(t, dir)
	defer stop()
	says(t, r, "unsupported version")
}

// says waits until Runner.Missing contains a text.
func says(t *testing.T, r *Runner, want string) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(plugintest.Patience); !strings.Contains(r.Missing(), want); {
		select {
		case <-deadline:
			t.Fatalf("missing %q, want %q", r.Missing(), want)
		case <-ticker.C:
		}
	}
}

// TestTheSocketOfALongDomain verifies that sockets have valid names: Linux accepts paths of 107 bytes, and the
// chart accepts domains of 200 bytes.
func TestTheSocketOfALongDomain(t *testing.T) {
	const kubelet = "/var/lib/kubelet/device-plugins"
	dir, err := os.MkdirTemp("/tmp", "s") //nolint:usetesting // as long as the kubelet's
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	dir = filepath.Join(dir, strings.Repeat("d", len(kubelet)-len(dir)-1))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, resource := range []string{"gpumem.dev/gpu-mem", strings.Repeat("a", 56) + "/gpu-mem", strings.Repeat("a", 200) + "/gpu-mem", strings.Repeat("a", 200) + "/gpu-core"} {
		path := NewRunner(dir, zap.NewNop()).path(Endpoint{Resource: resource})
		l, err := listen(t.Context(), path)
		if err != nil {
			t.Errorf("%s: %v", resource, err)
			continue
		}
		l.Close()
		names[filepath.Base(path)] = true
	}
	if len(names) != 4 || !names["gpumem-gpumem.dev_gpu-mem.sock"] {
		t.Errorf("the sockets are %v", names)
	}
}

// TestLogLinesOfACallShareANumber covers the log lines of the server and of the packages that it calls.
func TestLogLinesOfACallShareANumber(t *testing.T) {
	n := newNode(t, nil, nil, pod("direct", 1, "", app(3)))
	core, logged := observer.New(zap.DebugLevel)
	n.Plugin = New(DefaultConfig("n1"), n.Source, n.Pods, n.Kubelet, n.Notes, n.Counts, zap.New(core))
	if err := n.State.Load(); err != nil {
		t.Fatal(err)
	}
	n.Kubelet.Lists("ns/direct")
	ids := n.Free()[:3]
	if _, err := n.Server.Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}}); err != nil {
		t.Fatal(err)
	}
	n.Kubelet.Give("direct", "main", ids)
	n.Pods.Settle("direct")
	logged.TakeAll()
	answer := NewRunner(t.TempDir(), zap.NewNop()).answer(semaphore.NewWeighted(maxCalls))
	start := func(ctx context.Context, _ any) (any, error) {
		return n.Server.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	}
	numbers := make(map[any][]string)
	for range 2 {
		if _, err := answer(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "PreStartContainer"}, start); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range logged.All() {
		number := line.ContextMap()["operation"]
		numbers[number] = append(numbers[number], line.Message)
	}
	want := [][]string{{"container starts"}, {"container starts", "assignment corrected"}}
	got := slices.SortedFunc(maps.Values(numbers), func(a, b []string) int { return len(a) - len(b) })
	if diff := cmp.Diff(want, got); diff != "" || len(numbers[nil]) > 0 {
		t.Errorf("lines by number (-want +got):\n%s", diff)
	}
}
