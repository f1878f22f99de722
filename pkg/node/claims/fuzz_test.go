package claims

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// twin records the amounts that each prepared claim must have, independently of the driver.
type twin struct {
	has map[types.UID]ask
}

type ask struct {
	device     string
	gib, cores int64
}

func (w twin) may(uid types.UID, a ask) bool {
	gib, cores := a.gib, a.cores
	for other, o := range w.has {
		if other != uid && o.device == a.device {
			gib, cores = gib+o.gib, cores+o.cores
		}
	}
	return gib <= 8 && cores <= 100
}

// FuzzAgainstATwin simulates a kubelet that prepares, unprepares, repeats and forgets calls, and a scheduler
// that allocates claims again. The driver is killed before or after any step on its disk. After its restart,
// the kubelet repeats the unanswered calls.
func FuzzAgainstATwin(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		disk := newMemory()
		r := newRig(t, plugintest.TwoGPUs(), disk)
		start := func() {
			disk.again()
			r = newRig(t, plugintest.TwoGPUs(), disk)
			if err := r.Restore(); err != nil {
				t.Fatal(err)
			}
		}
		w := twin{has: make(map[types.UID]ask)}
		for range 200 {
			name := strconv.Itoa(rng.IntN(6))
			uid := types.UID("uid-" + name)
			if disk.left = -1; rng.IntN(3) == 0 {
				disk.left, disk.after = rng.IntN(3), rng.IntN(2) == 0
			}
			switch rng.IntN(5) {
			case 0, 1, 2:
				a := ask{device: []string{gpuA, gpuB}[rng.IntN(2)], gib: 1 + rng.Int64N(9), cores: rng.Int64N(110)}
				if was, ok := w.has[uid]; ok && rng.IntN(4) > 0 {
					a = was
				}
				claim := allocated(name, result(a.device, a.gib, a.cores))
				got := r.one(t, claim)
				if disk.dead { // the kubelet has no answer, and calls the next process
					start()
					got = r.one(t, claim)
				}
				if may := w.may(uid, a) && a.gib <= 8 && a.cores <= 100; may != (got.Err == nil) {
					t.Fatalf("%s asks for %+v beside %v: %v", uid, a, w.has, got.Err)
				}
				if got.Err == nil {
					w.has[uid] = a
				}
			case 3:
				err := r.undo(t, uid)
				if disk.dead {
					start()
					err = r.undo(t, uid)
				}
				if err != nil {
					t.Fatal(err)
				}
				delete(w.has, uid)
			case 4:
				start()
			}
			disk.again()
			compareTo(t, r, w)
		}
	})
}

// compareTo reports differences between the driver, its disk and the twin.
func compareTo(t *testing.T, r *rig, w twin) {
	t.Helper()
	if len(r.disk.specs) != len(w.has) || len(r.Claims()) != len(w.has) {
		t.Fatalf("%d files, %d claims, and %v are prepared", len(r.disk.specs), len(r.Claims()), w.has)
	}
	for uid, a := range w.has {
		env := r.disk.env(t, uid)
		want := map[string]gpu.UUID{gpuA: plugintest.GPUA, gpuB: plugintest.GPUB}[a.device]
		if env["GPUMEM_GPU_UUID"] != string(want) || env["GPUMEM_LIMIT_MIB"] != fmt.Sprint(a.gib*1024) {
			t.Fatalf("%s has %v, want %+v", uid, env, a)
		}
	}
	read, found, _ := readClaims(r.disk, zap.NewNop())
	if found != (r.disk.checkpoint != nil) || len(read) != len(w.has) {
		t.Fatalf("the checkpoint has %v, found: %t; prepared are %v", read, found, w.has)
	}
}
