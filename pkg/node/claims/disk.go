package claims

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/node/atomicfile"
)

// checkpointVersion is of the file's form.
const checkpointVersion = 1

// checkpoint is the file that has all claims that are prepared.
type checkpoint struct {
	Version int     `json:"v"`
	Claims  []Claim `json:"claims"`
}

// Disk is where claims are written down. All of it is done when a method returns, or may not be.
type Disk interface {
	Checkpoint() ([]byte, error) // nil: there is none
	WriteCheckpoint(data []byte) error
	Specs() ([]types.UID, error) // of the claims that have a CDI file
	WriteSpec(uid types.UID, data []byte) error
	RemoveSpec(uid types.UID) error // or there was none
}

// readClaims returns the claims of a checkpoint.
func readClaims(disk Disk) (map[types.UID]Claim, error) {
	claims := make(map[types.UID]Claim)
	data, err := disk.Checkpoint()
	if err != nil || data == nil {
		return claims, err
	}
	var c checkpoint
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("the checkpoint of prepared claims cannot be read: %w", err)
	}
	if c.Version != checkpointVersion {
		return nil, fmt.Errorf("the checkpoint of prepared claims has version %d, and this program reads %d", c.Version, checkpointVersion)
	}
	for _, one := range c.Claims {
		claims[one.UID] = one
	}
	return claims, nil
}

func writeClaims(disk Disk, claims map[types.UID]Claim) error {
	data, err := json.Marshal(checkpoint{Version: checkpointVersion, Claims: slices.SortedFunc(maps.Values(claims), compare)})
	if err != nil {
		return err
	}
	return disk.WriteCheckpoint(data)
}

// Folders is a Disk of two folders.
type Folders struct {
	State string // the driver's own; that of the kubelet goes with it
	CDI   string // where container runtimes look for CDI files
	Name  string // begins the name of our files there
}

// NewFolders makes the folders of a driver: its own, below the kubelet's, that of CDI files, and
// that in which the kubelet looks for it.
func NewFolders(kubelet, cdi, domain string) (Folders, error) {
	f := Folders{State: state(kubelet, domain), CDI: cdi, Name: domain}
	return f, errors.Join(os.MkdirAll(f.State, 0o755), os.MkdirAll(f.CDI, 0o755), os.MkdirAll(registry(kubelet), 0o755))
}

func state(kubelet, domain string) string { return filepath.Join(kubelet, "plugins", domain) }

func registry(kubelet string) string { return filepath.Join(kubelet, "plugins_registry") }

const checkpointFile = "checkpoint.json"

// Checkpoint implements Disk.
func (f Folders) Checkpoint() ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(f.State, checkpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// WriteCheckpoint implements Disk.
func (f Folders) WriteCheckpoint(data []byte) error {
	return atomicfile.Write(filepath.Join(f.State, checkpointFile), data, 0o644)
}

// Specs implements Disk. What is left of a file that was being written it removes.
func (f Folders) Specs() (uids []types.UID, err error) {
	entries, err := os.ReadDir(f.CDI)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, ours := strings.CutPrefix(e.Name(), f.prefix())
		if uid, whole := strings.CutSuffix(name, ".json"); ours && whole {
			uids = append(uids, types.UID(uid))
		} else if ours {
			if err := os.Remove(filepath.Join(f.CDI, e.Name())); err != nil {
				return nil, err
			}
		}
	}
	return uids, nil
}

// WriteSpec implements Disk.
func (f Folders) WriteSpec(uid types.UID, data []byte) error {
	return atomicfile.Write(filepath.Join(f.CDI, f.spec(uid)), data, 0o644)
}

// RemoveSpec implements Disk.
func (f Folders) RemoveSpec(uid types.UID) error {
	err := os.Remove(filepath.Join(f.CDI, f.spec(uid)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (f Folders) prefix() string { return f.Name + "-" + cdiClass + "-" }

func (f Folders) spec(uid types.UID) string { return f.prefix() + string(uid) + ".json" }
