package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/render"
)

var (
	upgrades    = flag.Int("upgrades", 1, "number of driver upgrades of each kind")
	upgradeSeed = flag.Uint64("upgrade-seed", 0, "seed of the first upgrade; 0: a random one")
)

// TestDriverUpgrades upgrades the driver of a node with 30 pods on its GPUs, like NVIDIA's GPU Operator. The
// device plugin's end and its claims use the product's code. The kubelet, the MPS daemon and the Operator are
// models:
//   - The kubelet removes a pod with a claim after a device plugin has unprepared the claim.
//   - The MPS daemon (mps.Supervisor) waits for its clients, at most mps.drainSeconds, and then ends them.
//   - The Operator 26.7 evicts pods (driver.upgradePolicy.drain), stops DaemonSets by their label, waits 5
//     minutes for them, and unloads the module. If a program has the module's file open, that fails. The
//     Operator then restores the label and retries.
func TestDriverUpgrades(t *testing.T) {
	first := *upgradeSeed
	if first == 0 {
		first = rand.Uint64()
	}
	for seed := first; seed < first+uint64(*upgrades); seed++ {
		for _, byClaims := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, claims %t", seed, byClaims), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					u := newUpgrade(t, seed, byClaims)
					u.run()
					if t.Failed() {
						t.Logf("again: go test ./cmd/gpumem-device-plugin -run %s -upgrade-seed %d\n%s", "TestDriverUpgrades", seed, strings.Join(u.events, "\n"))
					}
				})
			})
		}
	}
}

const (
	sharers  = 30
	mpsDrain = 60 * time.Second // chart value mps.drainSeconds
	maxGrace = 30 * time.Second // of the sharers
)

// upgrade is a node with a driver upgrade.
type upgrade struct {
	*testing.T
	device string // file that users of the driver's module have open
	begin  time.Time
	driver *claims.Driver // nil on a node without claims
	rest   sync.WaitGroup // restarting containers, and ending processes

	mu      sync.Mutex // guards the rest
	rng     *rand.Rand
	events  []string
	stopped bool // the Operator has changed the label of the DaemonSets to stop them
	loaded  bool // the driver's module
	plugin  *user
	daemon  *user
	ending  bool // the daemon waits for its clients
	pods    []*sharer
}

// user is a process that keeps the driver's device file open.
type user struct{ file *os.File }

// sharer is a pod that shares a GPU.
type sharer struct {
	user
	name       string
	claim      types.UID
	controlled bool
	deleted    bool
	gone       bool
}

func newUpgrade(t *testing.T, seed uint64, byClaims bool) *upgrade {
	dir := t.TempDir()
	u := &upgrade{T: t, device: filepath.Join(dir, "nvidiactl"), begin: time.Now(), loaded: true, rng: rand.New(rand.NewPCG(seed, 0))}
	if err := os.WriteFile(u.device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if byClaims {
		disk, err := claims.NewFolders(dir, filepath.Join(dir, "cdi"), "gpumem.dev")
		if err != nil {
			t.Fatal(err)
		}
		inv := plugintest.TwoGPUs()
		inv.Devices[1].Allocatable, inv.Devices[1].MemoryMiB = sharers, (sharers+1)*1024
		u.driver = claims.New(claims.Config{
			Domain: "gpumem.dev", Node: "n1", Containers: render.DefaultConfig(),
			Ready: func(context.Context, gpu.Enforcement, []gpu.Device) error { return nil },
		}, grants.NewOffers(plugintest.NewSource(inv), true), disk, make(map[types.UID]claims.Claim), zap.NewNop())
	}
	u.plugin, u.daemon = u.open(), u.open()
	for i := range sharers {
		s := &sharer{user: *u.open(), name: fmt.Sprintf("pod-%d", i), controlled: i%10 > 0, claim: types.UID(fmt.Sprintf("uid-%d", i))}
		u.pods = append(u.pods, s)
		if byClaims {
			u.prepare(s)
		}
	}
	return u
}

func (u *upgrade) open() *user {
	file, err := os.Open(u.device)
	if err != nil {
		u.Fatal(err)
	}
	return &user{file: file}
}

// end ends the process, which closes its file.
func (p *user) end() {
	if p.file != nil {
		p.file.Close()
	}
	p.file = nil
}

func (p *user) runs() bool { return p.file != nil }

// uses returns the number of processes that have the device open, and therefore keep the module loaded.
func (u *upgrade) uses() (n int) {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		u.Fatal(err)
	}
	for _, fd := range open {
		if file, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && file == u.device {
			n++
		}
	}
	return n
}

func (u *upgrade) prepare(s *sharer) {
	gib := *resource.NewQuantity(1<<30, resource.BinarySI)
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: s.name, UID: s.claim},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: "gpumem.dev", Pool: "n1", Device: resourceslices.DeviceName(plugintest.GPUB), ShareID: new(s.claim),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": gib},
		}}}}},
	}
	results, err := u.driver.PrepareResourceClaims(u.Context(), []*resourceapi.ResourceClaim{claim})
	if err = errors.Join(err, results[s.claim].Err); err != nil {
		u.Fatal(err)
	}
}

// do runs a step that reads or changes the state.
func (u *upgrade) do(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f()
}

func (u *upgrade) is(f func() bool) (yes bool) {
	u.do(func() { yes = f() })
	return yes
}

// until waits for a condition, and reports whether it became true within the limit.
func (u *upgrade) until(limit time.Duration, f func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if u.is(f) {
			return true
		}
	}
	return false
}

func (u *upgrade) event(format string, args ...any) {
	u.events = append(u.events, fmt.Sprintf("%6.1fs ", time.Since(u.begin).Seconds())+fmt.Sprintf(format, args...))
}

// pause sleeps for a random time.
func (u *upgrade) pause(limit time.Duration) {
	var d time.Duration
	u.do(func() { d = time.Duration(u.rng.Int64N(int64(limit))) })
	time.Sleep(d)
}

// remove deletes a pod and waits until it is gone.
func (u *upgrade) remove(s *sharer) {
	if was := u.is(func() bool { was := s.deleted; s.deleted = true; return was }); was {
		return
	}
	u.pause(maxGrace)
	u.do(func() { s.end(); u.event("%s has ended", s.name) })
	if u.driver != nil && !u.until(10*time.Second, func() bool { return u.plugin.runs() && u.unprepare(s) }) {
		u.Errorf("%s has ended, and is not removed: no plugin unprepares its claim", s.name)
	}
	u.do(func() { s.gone = true })
}

func (u *upgrade) unprepare(s *sharer) bool {
	results, err := u.driver.UnprepareResourceClaims(u.Context(), []kubeletplugin.NamespacedObject{{UID: s.claim}})
	return errors.Join(err, results[s.claim]) == nil
}

// crash ends and restarts a container with level mps.
func (u *upgrade) crash(s *sharer) {
	u.do(s.end)
	u.pause(time.Minute) // the kubelet's back-off
	for {
		time.Sleep(time.Second)
		done := u.is(func() bool {
			switch {
			case s.deleted:
				return true
			case !u.loaded: // the container runtime finds no GPU
				return false
			case u.plugin.runs() && (!u.daemon.runs() || u.ending): // the plugin stops it
				return false
			case !u.daemon.runs():
				u.Errorf("%s starts without a limit, and reports the level mps", s.name)
			}
			s.user = *u.open()
			u.event("%s starts again", s.name)
			return true
		})
		if done {
			return
		}
	}
}

// endDaemon signals the MPS daemon to end.
func (u *upgrade) endDaemon() {
	if was := u.is(func() bool { was := u.ending; u.ending = true; return was }); was {
		return
	}
	u.until(mpsDrain, func() bool {
		for _, s := range u.pods {
			if s.runs() {
				return false
			}
		}
		return true
	})
	u.do(func() {
		u.event("the MPS daemon ends")
		u.daemon.end()
		for _, s := range u.pods {
			if s.runs() {
				u.rest.Go(func() { u.crash(s) })
			}
		}
	})
}

// endPlugin signals the device plugin to end. The plugin's end uses the product's code (outlive).
func (u *upgrade) endPlugin() {
	holders := func() (n int, _ <-chan struct{}) {
		u.do(func() {
			for _, s := range u.pods {
				if !s.gone {
					n++
				}
			}
		})
		return n, nil
	}
	ctx, cancel := context.WithTimeout(u.Context(), maxShutdown)
	defer cancel()
	if u.driver != nil {
		holders = u.driver.Prepared
	} else {
		plugin := deviceplugin.New(deviceplugin.DefaultConfig("n1"), plugintest.NewSource(plugintest.TwoGPUs()), plugintest.NewPods(), nil, &plugintest.Notes{}, &plugintest.Counts{}, zap.NewNop())
		plugin.Announcer.Shutdown(ctx, func(context.Context) error { return nil })
	}
	outlive(ctx, zap.NewNop(), true,
		func(context.Context) (bool, error) { return u.is(func() bool { return u.stopped }), nil },
		holders,
		func(context.Context) bool { return u.is(u.daemon.runs) })
	u.do(func() {
		u.event("the device plugin ends with the module used by %d", u.uses())
		u.plugin.end()
	})
}

// drain evicts all pods in random order, and waits until they are gone. It skips a pod without a controller,
// which its owner deletes some time later.
func (u *upgrade) drain() {
	var gone sync.WaitGroup
	for _, i := range u.permutation() {
		gone.Go(func() {
			if s := u.pods[i]; s.controlled {
				u.pause(10 * time.Second)
			} else {
				u.pause(2 * time.Minute)
			}
			u.remove(u.pods[i])
		})
	}
	gone.Wait()
}

func (u *upgrade) permutation() (order []int) {
	u.do(func() { order = u.rng.Perm(len(u.pods)) })
	return order
}

// run upgrades the driver and checks the node's state.
func (u *upgrade) run() {
	drainFirst := u.rng.IntN(2) == 0 // the Operator's own order; in the other order, administrators drain the node at the same time
	var drained sync.WaitGroup
	drained.Go(u.drain)
	for _, i := range u.permutation() {
		u.rest.Go(func() {
			u.pause(20 * time.Second)
			if u.is(func() bool { return u.pods[i].runs() && !u.pods[i].deleted }) {
				u.crash(u.pods[i])
			}
		})
	}
	if drainFirst {
		drained.Wait()
	}
	unloaded := false
	for try := 0; try < 3 && !unloaded; try++ {
		unloaded = u.replace()
	}
	if !unloaded {
		u.Errorf("the upgrade is stuck: the module is used by %d", u.uses())
	}
	drained.Wait()
	u.rest.Wait()
	u.do(func() {
		for _, s := range u.pods {
			if !s.gone {
				u.Errorf("%s is not gone", s.name)
			}
			if !s.deleted {
				u.Errorf("%s has ended, and nobody deleted it", s.name)
			}
		}
		u.plugin.end()
		u.daemon.end()
	})
}

// replace makes one attempt to replace the driver, and reports whether it succeeded.
func (u *upgrade) replace() (unloaded bool) {
	u.do(func() { u.stopped = true; u.event("the label is %q", "paused-for-driver-upgrade") })
	for _, end := range []func(){u.endDaemon, u.endPlugin} {
		u.rest.Go(func() { u.pause(5 * time.Second); end() })
	}
	left := u.until(5*time.Minute, func() bool { return !u.plugin.runs() && !u.daemon.runs() })
	u.pause(10 * time.Second)
	u.do(func() {
		unloaded = left && u.uses() == 0
		u.loaded = !unloaded
		u.event("DaemonSets stopped: %t, module used by %d", left, u.uses())
	})
	if unloaded {
		u.pause(2 * time.Minute) // until the next driver is loaded
	}
	// The Operator restores the label in both cases, and both DaemonSets return.
	u.until(time.Hour, func() bool { u.stopped, u.loaded = false, true; return !u.plugin.runs() && !u.daemon.runs() })
	u.do(func() { u.plugin, u.daemon, u.ending = u.open(), u.open(), false })
	return unloaded
}

// TestOutlive verifies that a failed read of the label changes nothing unless the plugin lacks the right to read
// it, and that the deadline starts at the signal.
func TestOutlive(t *testing.T) {
	away := errors.New("the API server is away")
	forbidden := fmt.Errorf("read node: %w", apierrors.NewForbidden(v1.Resource("nodes"), "", nil))
	unauthorized := fmt.Errorf("read node: %w", apierrors.NewUnauthorized("the account is gone"))
	for name, tc := range map[string]struct {
		reads   []any         // results of reading the label, one per second; the last one repeats
		holders time.Duration // until the last pod is gone
		daemon  time.Duration // until the MPS daemon has ended
		want    time.Duration
		unread  bool // the process never reached the API server
	}{
		"the API server was always away":        {[]any{away}, time.Hour, time.Hour, 0, true},
		"the first read ever succeeds":          {[]any{true}, 20 * time.Second, 0, 20 * time.Second, true},
		"the node stays":                        {[]any{false}, time.Hour, time.Hour, 0, false},
		"the first read fails, the node stays":  {[]any{away, away, false}, time.Hour, time.Hour, 2 * time.Second, false},
		"the first read fails, the driver goes": {[]any{away, true}, 10 * time.Second, 20 * time.Second, 20 * time.Second, false},
		"a later read fails":                    {[]any{true, away}, 20 * time.Second, 10 * time.Second, 20 * time.Second, false},
		"no read succeeds":                      {[]any{away}, time.Hour, 0, maxShutdown, false},
		"no read succeeds, nobody needs it":     {[]any{away}, 0, 0, 0, false},
		"gpumem is uninstalled":                 {[]any{forbidden}, time.Hour, time.Hour, 0, false},
		"its account is deleted":                {[]any{true, unauthorized}, time.Hour, 0, time.Second, false},
		"a pod never ends":                      {[]any{true}, time.Hour, 0, maxShutdown, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), maxShutdown)
				defer cancel()
				begin := time.Now()
				stopped := func(context.Context) (bool, error) {
					switch now := tc.reads[min(int(time.Since(begin)/time.Second), len(tc.reads)-1)].(type) {
					case bool:
						return now, nil
					case error:
						return false, now
					default:
						panic(now)
					}
				}
				outlive(ctx, zap.NewNop(), !tc.unread, stopped,
					func() (n int, _ <-chan struct{}) {
						if time.Since(begin) < tc.holders {
							n = 1
						}
						return n, nil
					},
					func(context.Context) bool { return time.Since(begin) < tc.daemon })
				if took := time.Since(begin); took != tc.want {
					t.Errorf("it ends after %s, want %s", took, tc.want)
				}
			})
		})
	}
}

// TestTheGracePeriodCoversLeaving verifies that the chart's grace period leaves 30 seconds for the end of the
// parts, on each node.
func TestTheGracePeriodCoversLeaving(t *testing.T) {
	template, err := os.ReadFile("../../charts/gpumem/templates/device-plugin-daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("\n      terminationGracePeriodSeconds: %d\n      containers:", int((maxShutdown+30*time.Second)/time.Second))
	if !strings.Contains(string(template), want) {
		t.Errorf("the template lacks %q", want)
	}
}
