package claims

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// faulty is a disk with calls that fail.
type faulty struct {
	*memory

	specs, read, remove error
}

func (f faulty) Specs() ([]types.UID, error) {
	if f.specs != nil {
		return nil, f.specs
	}
	return f.memory.Specs()
}

func (f faulty) ReadSpec(uid types.UID) ([]byte, error) {
	if f.read != nil {
		return nil, f.read
	}
	return f.memory.ReadSpec(uid)
}

func (f faulty) RemoveSpec(uid types.UID) error {
	if f.remove != nil {
		return f.remove
	}
	return f.memory.RemoveSpec(uid)
}

// After a failed Restore, the driver must not serve the kubelet: a file without a claim could start a container.
func TestRestoreThatFails(t *testing.T) {
	away := errors.New("input/output error")
	for want, disk := range map[string]faulty{
		"CDI files: input/output error":                     {memory: newMemory(), specs: away},
		"CDI file of claim uid-strange: input/output error": {memory: newMemory(), remove: away},
	} {
		disk.memory.specs["uid-strange"] = []byte("{}")
		r := newRig(t, plugintest.TwoGPUs(), disk.memory)
		r.Driver.disk = disk
		if err := r.Restore(); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestRecoverThatFails covers failures of the calls that rebuild a lost checkpoint. A claim whose file cannot be
// read is not prepared.
func TestRecoverThatFails(t *testing.T) {
	away := errors.New("input/output error")
	claim := allocated("a", result(gpuA, 2, 0))
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	if got := r.one(t, claim); got.Err != nil {
		t.Fatal(got.Err)
	}
	r.disk.checkpoint = nil
	read := func(context.Context) ([]*resourceapi.ResourceClaim, error) {
		return []*resourceapi.ResourceClaim{claim}, nil
	}
	recovered := func(disk faulty, read func(context.Context) ([]*resourceapi.ResourceClaim, error)) (int, error) {
		prepared, err := Recover(t.Context(), disk, read, domain, node, 1024, zap.NewNop())
		return len(prepared), err
	}
	if _, err := recovered(faulty{memory: r.disk, specs: away}, read); !errors.Is(err, away) {
		t.Errorf("the files cannot be listed: %v", err)
	}
	if _, err := recovered(faulty{memory: r.disk}, func(context.Context) ([]*resourceapi.ResourceClaim, error) { return nil, away }); !errors.Is(err, away) {
		t.Errorf("the claims cannot be read: %v", err)
	}
	if n, err := recovered(faulty{memory: r.disk, read: away}, read); n != 0 || err != nil {
		t.Errorf("a file cannot be read: %d claims, %v", n, err)
	}
	r.disk.checkpoint = nil
	if n, err := recovered(faulty{memory: r.disk}, read); n != 1 || err != nil {
		t.Errorf("%d claims, %v", n, err)
	}
}

// TestWhatIsLoggedOfAClaim covers the log lines that show an administrator when a claim got its GPU.
func TestWhatIsLoggedOfAClaim(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	r.Driver.log = zap.New(core)
	claim := allocated("a", result(gpuA, 2, 0))
	if got := r.one(t, claim); got.Err != nil {
		t.Fatal(got.Err)
	}
	if err := r.undo(t, claim.UID); err != nil {
		t.Fatal(err)
	}
	r.ready = errors.New("not yet")
	if got := r.one(t, claim); got.Err == nil {
		t.Fatal("it is prepared")
	}
	var got []string
	for _, line := range logs.All() {
		got = append(got, line.Message)
		if line.ContextMap()["uid"] != string(claim.UID) || line.ContextMap()["claim"] != "ml/a" {
			t.Errorf("%s: fields %v", line.Message, line.ContextMap())
		}
	}
	if want := "claim prepared, claim given back, claim is not prepared"; strings.Join(got, ", ") != want {
		t.Errorf("logged %q, want %q", got, want)
	}
}

func TestFoldersThatCannotBeUsed(t *testing.T) {
	f := Folders{Store: checkpoint.File(filepath.Join(t.TempDir(), checkpointFile)), CDI: t.TempDir(), Name: domain}
	if err := f.WriteSpec("a", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if data, err := f.ReadSpec("a"); string(data) != "{}" || err != nil {
		t.Errorf("a file: %q, %v", data, err)
	}
	if _, err := f.ReadSpec("b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(f.CDI, f.spec("c"), "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.RemoveSpec("c"); err == nil {
		t.Error("a directory is removed")
	}
	if err := os.MkdirAll(filepath.Join(f.CDI, f.prefix()+"c.tmp", "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Specs(); err == nil {
		t.Error("an incomplete file stays")
	}
	f.CDI = filepath.Join(f.CDI, "none")
	if _, err := f.Specs(); err == nil {
		t.Error("a directory that is not there has no file")
	}
}

// The driver cuts a long attribute, because the API server would reject the whole ResourceSlice.
func TestALongAttributeIsCut(t *testing.T) {
	inv := plugintest.TwoGPUs()
	inv.Devices[0].Model, inv.Devices[1].Model = strings.Repeat("x", 65), strings.Repeat("x", 64)
	for i, d := range inv.Devices {
		model := attributes(d, inv, nil)["model"].StringValue
		if model == nil || *model != strings.Repeat("x", 64) {
			t.Errorf("GPU %d: model %v", i, model)
		}
	}
}
