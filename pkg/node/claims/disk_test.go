package claims

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/node/checkpoint"
)

func TestFolders(t *testing.T) {
	state := t.TempDir()
	f := Folders{Store: checkpoint.File(filepath.Join(state, checkpointFile)), CDI: t.TempDir(), Name: domain}
	if data, err := f.Read(); data != nil || err != nil {
		t.Errorf("no checkpoint: %q, %v", data, err)
	}
	for _, err := range []error{f.Write([]byte("one")), f.Write([]byte("two")), f.WriteSpec("a", []byte("{}")), f.WriteSpec("b", []byte("{}")), f.RemoveSpec("b"), f.RemoveSpec("b")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if data, err := f.Read(); string(data) != "two" || err != nil {
		t.Errorf("checkpoint: %q, %v", data, err)
	}
	for _, name := range []string{"gpumem.dev-claim-c.json.tmp", "nvidia.json"} {
		if err := os.WriteFile(filepath.Join(f.CDI, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	uids, err := f.Specs()
	if diff := cmp.Diff([]types.UID{"a"}, uids); diff != "" || err != nil {
		t.Error(diff, err)
	}
	var names []string
	entries, _ := os.ReadDir(f.CDI)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"gpumem.dev-claim-a.json", "nvidia.json"}, names); diff != "" {
		t.Error(diff)
	}
	f.Store = checkpoint.File(filepath.Join(state, "gone", checkpointFile))
	if err := f.Write(nil); err == nil {
		t.Error("a file is written where there is no folder")
	}
}

func TestAClaimsCheckpointThatIsNeverReadableIsSetAside(t *testing.T) {
	kubelet := t.TempDir()
	f, err := NewFolders(kubelet, t.TempDir(), domain)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(state(kubelet, domain), checkpointFile)
	if err := os.Mkdir(file, 0o755); err != nil {
		t.Fatal(err)
	}
	for try := range maxReads {
		_, err := Recover(t.Context(), f, nil, domain, node, 1024, zap.NewNop())
		if last := try == maxReads-1; (err == nil) != last {
			t.Errorf("try %d: %v", try, err)
		}
	}
	if err := f.Write(nil); err != nil {
		t.Error(err)
	}
}
