package coexist

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

const memory = "gpumem.dev/gpu-mem"

func uuid(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000", i)) }

func machine(n int) gpu.Inventory {
	inv := gpu.Inventory{UnitMiB: 1024}
	for i := range n {
		inv.Devices = append(inv.Devices, gpu.Device{UUID: uuid(i), Index: i, Allocatable: 14})
	}
	return inv
}

// prober is a source with constant GPUs.
type prober gpu.Inventory

func (p prober) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	return gpu.Inventory(p), "", make(chan struct{})
}

func (p prober) Looked() <-chan struct{} {
	looked := make(chan struct{})
	close(looked)
	return looked
}

// kubelet returns a given answer.
type kubelet struct {
	mu    sync.Mutex
	users map[string]map[string]string
	err   error
}

func (k *kubelet) Users(context.Context) (map[string]map[string]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.users, k.err
}

func (k *kubelet) tell(users map[string]map[string]string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.users, k.err = users, err
}

type events []string

func (e *events) Pod(placement.PodRef, event.OnPod, string) {}

func (e *events) Node(of event.OnNode, note string) { *e = append(*e, of.Row().Reason+": "+note) }

// offered renders the inventory in one line.
func offered(n *Filter) string {
	inv, reason, _ := n.Inventory()
	var out []string
	for _, d := range inv.Devices {
		out = append(out, strings.TrimRight(fmt.Sprintf("%d %s", d.Index, reasons.Causes(d.Status)), " "))
	}
	return strings.Join(append(out, reason), ";")
}

// NVIDIA's plugin allocates GPUs and gets them back, one after the other.
func TestGPUsInUseAreNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, said := &kubelet{}, &events{}
		n := NewFilter(Selector{}, memory, 5*time.Second, prober(machine(2)), k, said, zaptest.NewLogger(t))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		<-n.Looked()
		for _, step := range []struct {
			name  string
			users map[string]map[string]string
			err   error
			want  string
			said  int
		}{
			{"nobody", nil, nil, "0;1;", 0},
			{"NVIDIA's plugin", map[string]map[string]string{"nvidia.com/gpu": {string(uuid(1)): "ml/train"}}, nil, "0;1 in use as nvidia.com/gpu by pod ml/train;", 0},
			{"the kubelet does not tell", nil, errors.New("restarting"), "0;1 in use as nvidia.com/gpu by pod ml/train;", 0},
			{"a share of it", map[string]map[string]string{"nvidia.com/gpu.shared": {string(uuid(0)) + "::3": "ml/small"}}, nil, "0 in use as nvidia.com/gpu by pod ml/small;1;", 0},
			{"gpumem itself, and others", map[string]map[string]string{memory: {"00000001-3": "ml/ours"}, "example.com/nic": {string(uuid(0)): "net/x"}}, nil, "0;1;", 0},
			{"both", map[string]map[string]string{
				memory: {"00000001-3": "ml/ours", "00000001-4": "ml/ours"}, "nvidia.com/gpu": {string(uuid(1)): "ml/train"},
			}, nil, "0;1 in use as nvidia.com/gpu by pod ml/train;", 1},
			{"and still both", map[string]map[string]string{
				memory: {"00000001-3": "ml/ours"}, "nvidia.com/gpu": {string(uuid(1)): "ml/train"},
			}, nil, "0;1 in use as nvidia.com/gpu by pod ml/train;", 1},
			{"nobody again", nil, nil, "0;1;", 1},
			{"pods of gpushare, somewhere", map[string]map[string]string{
				"aliyun.com/gpu-mem": {string(uuid(1)) + "-_-3": "ml/old-b", string(uuid(0)) + "-_-4": "ml/old-a", string(uuid(0)) + "-_-5": "ml/old-a"},
			}, nil, "0 in use by pods that gpushare placed: ml/old-a, ml/old-b;1 in use by pods that gpushare placed: ml/old-a, ml/old-b;", 1},
			{"the last of them has ended", nil, nil, "0;1;", 1},
		} {
			_, _, changed := n.Inventory()
			before := offered(n)
			k.tell(step.users, step.err)
			time.Sleep(6 * time.Second)
			synctest.Wait()
			if got := offered(n); got != step.want {
				t.Errorf("%s: %q, want %q", step.name, got, step.want)
			}
			if len(*said) != step.said {
				t.Errorf("%s: said %v, want %d events", step.name, *said, step.said)
			}
			select {
			case <-changed:
				if before == step.want {
					t.Errorf("%s: told of a change, and there is none", step.name)
				}
			default:
				if before != step.want {
					t.Errorf("%s: not told of a change", step.name)
				}
			}
		}
		want := "GPUMemoryConflict: GPU 1 (" + string(uuid(1)) + ") is in use twice: as nvidia.com/gpu by pod ml/train, and as gpumem.dev/gpu-mem by ml/ours. " +
			"Delete one of them, and split the GPUs between the two device plugins."
		if diff := cmp.Diff(events{want}, *said); diff != "" {
			t.Errorf("said (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Before the kubelet's first answer, a GPU may have pods of another plugin, or clients of a retired protocol.
// If the kubelet never answers, administrators must still see the reason.
func TestGPUsAreNotOfferedBeforeTheFirstAnswer(t *testing.T) {
	taken := map[string]map[string]string{"nvidia.com/gpu": {string(uuid(1)): "ml/train"}}
	const ours, unhealthy = "0;1 in use as nvidia.com/gpu by pod ml/train;", "0 " + notListedReason + ";1 " + notListedReason + ";"
	for name, tc := range map[string]struct {
		gpus    int
		silent  time.Duration // time until the kubelet's first answer
		looked  time.Duration // time when Looked is closed
		first   string        // the GPUs at that time
		settled string        // the GPUs after the kubelet's answer
	}{
		"it answers at once":        {2, 0, 0, ours, ours},
		"it answers the second try": {2, 500 * time.Millisecond, time.Second, ours, ours},
		"it answers late":           {2, time.Minute, 10 * time.Second, unhealthy, ours},
		"no GPU to hold back":       {0, time.Minute, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &kubelet{}
				k.tell(taken, nil)
				if tc.silent > 0 {
					k.tell(nil, errors.New("starting"))
					time.AfterFunc(tc.silent, func() { k.tell(taken, nil) })
				}
				n := NewFilter(Selector{}, memory, 5*time.Second, prober(machine(tc.gpus)), k, &events{}, zaptest.NewLogger(t))
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				begin := time.Now()
				go func() { done <- n.Run(ctx) }()
				<-n.Looked()
				if took := time.Since(begin); took != tc.looked {
					t.Errorf("looked after %s, want %s", took, tc.looked)
				}
				if got := offered(n); got != tc.first {
					t.Errorf("at first %q, want %q", got, tc.first)
				}
				time.Sleep(tc.silent + 6*time.Second)
				synctest.Wait()
				if got := offered(n); got != tc.settled {
					t.Errorf("after the answer %q, want %q", got, tc.settled)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestASilentKubeletIsLogged expects one warning when GPUs become unhealthy without an answer, and a debug line
// with the reason at each refresh.
func TestASilentKubeletIsLogged(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		stop     time.Duration
		warnings int
	}{
		"it answers":           {nil, time.Minute, 0},
		"it is silent":         {errors.New("starting"), time.Minute, 1},
		"the node stops first": {errors.New("starting"), time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core, logged := observer.New(zap.DebugLevel)
				n := NewFilter(Selector{}, memory, 5*time.Second, prober(machine(1)), &kubelet{err: tc.err}, &events{}, zap.New(core))
				ctx, cancel := context.WithTimeout(t.Context(), tc.stop)
				defer cancel()
				if err := n.Run(ctx); err != nil {
					t.Error(err)
				}
				if got := logged.FilterLevelExact(zap.WarnLevel).Len(); got != tc.warnings {
					t.Errorf("%d warnings, want %d: %v", got, tc.warnings, logged.All())
				}
				if quiet := logged.FilterLevelExact(zap.DebugLevel).Len() == 0; quiet != (tc.err == nil) {
					t.Errorf("logged %v", logged.All())
				}
			})
		})
	}
}

func TestSelector(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "0;1;2;3;",
		"1":                     "1;",
		" 0 , 3 ":               "0;3;", //nolint:gocritic // users write so
		"!2":                    "0;1;3;",
		"GPU-0000000?-*,!0":     "1;2;3;",
		string(uuid(2)):         "2;",
		"7":                     "none of the 4 GPUs is among --devices",
		"GPU-00000001*,!1":      "none of the 4 GPUs is among --devices",
		"[0-1]":                 "0;1;",
		"0,!GPU-00000000-0000*": "none of the 4 GPUs is among --devices",
	} {
		selector, err := ParseSelector(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		n := NewFilter(selector, memory, time.Second, prober(machine(4)), &kubelet{}, &events{}, zaptest.NewLogger(t))
		n.Update(t.Context(), n.refresh)
		if got := offered(n); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"!", "0,!", "[", "GPU-[a"} {
		if _, err := ParseSelector(text); err == nil || !strings.Contains(err.Error(), "want UUIDs or indexes") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Links to excluded GPUs are removed with them.
func TestLinksOfGPUsThatAreLeftOut(t *testing.T) {
	inv := machine(3)
	inv.Links = []gpu.Link{{A: uuid(0), B: uuid(1), Lanes: 2}, {A: uuid(1), B: uuid(2), Lanes: 1}}
	selector, err := ParseSelector("!2")
	if err != nil {
		t.Fatal(err)
	}
	n := NewFilter(selector, memory, time.Second, prober(inv), &kubelet{}, &events{}, zaptest.NewLogger(t))
	n.Update(t.Context(), n.refresh)
	got, _, _ := n.Inventory()
	if diff := cmp.Diff(inv.Links[:1], got.Links); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}

// A MIG instance is selected with its GPU or by its own UUID. NVIDIA's plugin may use a separate resource for it.
func TestInstancesOfOthersAreTheirs(t *testing.T) {
	instance := gpu.Device{UUID: "MIG-x", Index: 2, Parent: "GPU-4cc1"}
	for list, want := range map[string]bool{"": true, "!GPU-4cc*": false, "GPU-4cc*": true, "MIG-x": true, "GPU-5*": false, "!MIG-x": false, "*": true} {
		s, err := ParseSelector(list)
		if err != nil || s.Selects(instance) != want {
			t.Errorf("%q selects an instance of GPU-4cc1: %t, %v", list, s.Selects(instance), err)
		}
	}
	if s, err := ParseSelector("*, !"); err == nil {
		t.Errorf("%+v", s)
	}
	if taken := listNVIDIAPods(map[string]map[string]string{"nvidia.com/mig-1g.5gb": {"MIG-x": "ml/theirs"}}); taken["MIG-x"] == "" {
		t.Error("what is given away as nvidia.com/mig-1g.5gb is not seen")
	}
}

// A GPU with clients of a retired MPS protocol accepts no new pods until the last of them has ended.
func TestGPUsWithRetiredClientsAreNotOffered(t *testing.T) {
	k := &kubelet{}
	n := NewFilter(Selector{}, memory, 5*time.Second, prober(machine(2)), k, &events{}, zaptest.NewLogger(t))
	n.SetRetired(func(inv gpu.Inventory, held map[string]string) map[gpu.UUID][]string {
		out := make(map[gpu.UUID][]string)
		for _, pod := range held {
			out[inv.Devices[1].UUID] = append(out[inv.Devices[1].UUID], pod)
		}
		return out
	})
	const reason = "clients of MPS protocol 3, which gpumem no longer runs, use it: delete "
	many := make(map[string]string)
	for i := range 10 {
		many[fmt.Sprint(i)] = fmt.Sprintf("ml/p%d", i)
	}
	for _, tc := range []struct {
		held map[string]string
		err  error
		want string
	}{
		{nil, nil, "0;1;"},
		{map[string]string{"b": "ml/b", "a": "ml/a"}, nil, "0;1 " + reason + "ml/a, ml/b;"},
		{nil, errors.New("the kubelet does not answer"), "0;1 " + reason + "ml/a, ml/b;"},
		{many, nil, "0;1 " + reason + "ml/p0, ml/p1, ml/p2, ml/p3, ml/p4, ml/p5, ml/p6, ml/p7 and 2 more;"},
		{nil, nil, "0;1;"},
	} {
		k.tell(map[string]map[string]string{memory: tc.held}, tc.err)
		n.Update(t.Context(), n.refresh)
		if got := offered(n); got != tc.want {
			t.Errorf("pods %v: offered %q, want %q", tc.held, got, tc.want)
		}
	}
}

// TestAGPUInReplicasHasOneUser verifies that the order of a map does not change the inventory.
func TestAGPUInReplicasHasOneUser(t *testing.T) {
	users := map[string]map[string]string{"nvidia.com/gpu.shared": {}}
	for i := range 8 {
		users["nvidia.com/gpu.shared"][fmt.Sprint("GPU-a::", i)] = fmt.Sprint("ml/p", i)
	}
	for range 100 {
		if got := listNVIDIAPods(users)["GPU-a"]; got != "ml/p7" {
			t.Fatalf("its user is %s, want ml/p7", got)
		}
	}
}

// changing is a prober with GPUs that a test changes.
type changing struct{ *inventory.Latest }

// numbered returns an inventory with these indexes. A GPU with index -1 is gone.
func numbered(indexes ...int) gpu.Inventory {
	inv := machine(len(indexes))
	for i, index := range indexes {
		inv.Devices[i].Index = index
	}
	inv.Devices = slices.DeleteFunc(inv.Devices, func(d gpu.Device) bool { return d.Index < 0 })
	return inv
}

// runOnce runs a process until it offers GPUs, and returns their numbers in the machine.
func runOnce(t *testing.T, list string, record checkpoint.Store, now gpu.Inventory) (offered []int) {
	t.Helper()
	selector, err := ParseSelector(list)
	if err != nil {
		t.Fatal(err)
	}
	n := NewFilter(selector, memory, time.Second, prober(now), &kubelet{}, &events{}, zaptest.NewLogger(t))
	n.SetIndexRecord(record)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	<-n.Looked()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	inv, _, _ := n.Inventory()
	selected := selector.Selected(record, now.Devices) // like the MPS supervisor
	for i := range 5 {
		_, has := inv.Device(uuid(i))
		if has {
			offered = append(offered, i)
		}
		if selected[uuid(i)] != has {
			t.Errorf("GPU %d: the plugin offers it: %t, and the MPS supervisor selects it: %t", i, has, selected[uuid(i)])
		}
	}
	return offered
}

// TestAnIndexSelectsTheSameGPUInLaterProcesses: after a boot with fewer or more GPUs, GPUs have new indexes, and
// another owner's GPU may have a selected index. A change of --devices applies to the current indexes.
func TestAnIndexSelectsTheSameGPUInLaterProcesses(t *testing.T) {
	type process struct {
		list string
		now  gpu.Inventory
		want []int // GPUs by their numbers in the first process
	}
	for name, processes := range map[string][]process{
		"two GPUs are exchanged":        {{"0", numbered(0, 1), []int{0}}, {"0", numbered(1, 0), []int{0}}, {"0", numbered(1, 0), []int{0}}},
		"another owner's GPU is lost":   {{"1", numbered(0, 1, 2), []int{1}}, {"1", numbered(-1, 0, 1), []int{1}}, {"1", numbered(-1, 0, 1), []int{1}}, {"1", numbered(0, 1, 2), []int{1}}},
		"one of two GPUs is lost":       {{"0,1", numbered(0, 1, 2, 3), []int{0, 1}}, {"0,1", numbered(-1, 0, 1, 2), []int{1}}, {"0,1", numbered(-1, 0, 1, 2), []int{1}}},
		"the only GPU is lost":          {{"1", numbered(0, 1, 2), []int{1}}, {"1", numbered(0, -1, 1), nil}, {"1", numbered(0, -1, 1), nil}, {"1", numbered(0, 1, 2), []int{1}}},
		"a GPU is added":                {{"0,1", numbered(0, 1), []int{0, 1}}, {"0,1", numbered(1, 2, 0), []int{0, 1}}, {"0,1", numbered(1, 2, 0), []int{0, 1}}},
		"a GPU is added, and all":       {{"", numbered(0, 1), []int{0, 1}}, {"", numbered(1, 2, 0), []int{0, 1, 2}}},
		"a GPU is added, and any index": {{"?", numbered(0, 1), []int{0, 1}}, {"?", numbered(0, 1, 2), []int{0, 1, 2}}},
		"a GPU is replaced":             {{"0", numbered(0, 1), []int{0}}, {"0", numbered(-1, 1, 0), []int{2}}, {"0", numbered(2, 1, 0), []int{2}}},
		"the flag selects another":      {{"0", numbered(0, 1), []int{0}}, {"1", numbered(0, 1), []int{1}}},
		"the flag changes after a loss": {{"1", numbered(0, 1, 2), []int{1}}, {"1", numbered(-1, 0, 1), []int{1}}, {"0", numbered(-1, 0, 1), []int{1}}},
		"the flag selects more":         {{"0", numbered(0, 1), []int{0}}, {"0,1", numbered(0, 1), []int{0, 1}}},
		"it is selected by its UUID":    {{"0," + string(uuid(1)), numbered(0, 1, 2), []int{0, 1}}, {"0," + string(uuid(1)), numbered(2, 1, 0), []int{0, 1}}},
		"no GPU answers for a while":    {{"1", numbered(0, 1), []int{1}}, {"1", numbered(), nil}, {"1", numbered(1, 0), []int{1}}},
	} {
		t.Run(name, func(t *testing.T) {
			record := checkpoint.File(filepath.Join(t.TempDir(), "devices.json"))
			for i, p := range processes {
				if diff := cmp.Diff(p.want, runOnce(t, p.list, record, p.now)); diff != "" {
					t.Errorf("process %d (-want +got):\n%s", i+1, diff)
				}
			}
		})
	}
}

// disk is a record that cannot be read or written.
type disk struct {
	checkpoint.Store
	fail func() (read, write error)
}

func (d *disk) Read() ([]byte, error) {
	if err, _ := d.fail(); err != nil {
		return nil, err
	}
	return d.Store.Read()
}

func (d *disk) Write(data []byte) error {
	if _, err := d.fail(); err != nil {
		return err
	}
	return d.Store.Write(data)
}

// While the record is unreadable, no GPU is selected, because the recorded indexes may select other GPUs than the
// current indexes. A record that cannot be decoded, or not be read for a long time, is set aside. A failed write is
// repeated.
func TestARecordThatFails(t *testing.T) {
	file := checkpoint.File(filepath.Join(t.TempDir(), "devices.json"))
	if got := runOnce(t, "0", file, numbered(0, 1)); !slices.Equal(got, []int{0}) {
		t.Fatalf("GPUs %v at first", got)
	}
	selector, err := ParseSelector("0")
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("input/output error")
	for name, tc := range map[string]struct {
		recovers time.Duration // 0 means never
		looked   time.Duration
		want     string
	}{
		"it is readable later": {5 * time.Second, 5 * time.Second, "1;"},
		"it is never readable": {0, (maxReads - 1) * time.Second, "0;"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				copied := checkpoint.File(filepath.Join(t.TempDir(), "devices.json"))
				data, err := file.Read()
				if err := errors.Join(err, copied.Write(data)); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				record := &disk{Store: copied, fail: func() (read, write error) {
					if tc.recovers == 0 || time.Since(begin) < tc.recovers {
						return broken, nil
					}
					return nil, nil
				}}
				n := NewFilter(selector, memory, time.Minute, prober(numbered(1, 0)), &kubelet{}, &events{}, zaptest.NewLogger(t))
				n.SetIndexRecord(record)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- n.Run(ctx) }()
				<-n.Looked()
				if took := time.Since(begin); took != tc.looked {
					t.Errorf("it looks after %s, want %s", took, tc.looked)
				}
				if got := offered(n); got != tc.want {
					t.Errorf("offered %q, want %q", got, tc.want)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}

	full := true
	core, logged := observer.New(zap.WarnLevel)
	n := NewFilter(selector, memory, time.Second, prober(numbered(1, 0)), &kubelet{}, &events{}, zap.New(core))
	n.SetIndexRecord(&disk{Store: file, fail: func() (read, write error) {
		if full {
			return nil, errors.New("no space left on device")
		}
		return nil, nil
	}})
	for range 3 {
		n.Update(t.Context(), n.refresh)
	}
	if logged.Len() != 1 || offered(n) != "0;" {
		t.Errorf("offered %s, logged %v", offered(n), logged.All())
	}
	full = false
	n.Update(t.Context(), n.refresh)
	if got := runOnce(t, "0", file, numbered(0, 1)); !slices.Equal(got, []int{1}) {
		t.Errorf("GPUs %v after the file could be written", got)
	}
	if err := file.Write([]byte("{")); err != nil {
		t.Fatal(err)
	}
	if got := runOnce(t, "0", file, numbered(0, 1)); !slices.Equal(got, []int{0}) {
		t.Errorf("GPUs %v without a usable record", got)
	}
}

// TestAnIndexSelectsTheGPUThatHadItFirst: when GPU 0 falls off the bus, another owner's GPU gets its index.
func TestAnIndexSelectsTheGPUThatHadItFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		selector, err := ParseSelector("0")
		if err != nil {
			t.Fatal(err)
		}
		p := changing{inventory.NewLatest(gpu.Inventory{}, "")}
		p.Set(machine(2), "")
		n := NewFilter(selector, memory, 5*time.Second, p, &kubelet{}, &events{}, zaptest.NewLogger(t))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		<-n.Looked()
		moved := machine(2)
		moved.Devices[0].Index, moved.Devices[1].Index = 1, 0
		moved.Devices[0].Status = gpu.Unhealthy("the driver no longer lists it")
		p.Set(moved, "")
		synctest.Wait()
		if got := offered(n); got != "1 the driver no longer lists it;" {
			t.Errorf("offered: %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestFirstNames(t *testing.T) {
	for want, names := range map[string][]string{
		"": nil, "a": {"a"}, "a, b": {"b", "a"}, "a, b and 1 more": {"c", "b", "a"}, "a, b and 2 more": {"d", "c", "b", "a"},
	} {
		if got := abbreviateNames(slices.Values(names), 2); got != want {
			t.Errorf("%v: %q, want %q", names, got, want)
		}
	}
}
