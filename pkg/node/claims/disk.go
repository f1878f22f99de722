package claims

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/node/checkpoint"
)

// checkpointVersion is the version of the checkpoint's format.
const checkpointVersion = 1

// prepared is the content of the checkpoint: all prepared claims.
type prepared struct {
	Version int     `json:"v"`
	Claims  []Claim `json:"claims"`
}

// Disk stores claims: in a checkpoint, and in one CDI file per claim. A change is durable when a method returns
// nil; a failed change has no effect.
type Disk interface {
	checkpoint.Store
	Specs() ([]types.UID, error) // claims with a CDI file
	ReadSpec(uid types.UID) ([]byte, error)
	WriteSpec(uid types.UID, data []byte) error
	RemoveSpec(uid types.UID) error // nil also if there was no file
}

// readClaims returns the claims of the checkpoint, and whether the checkpoint is usable. After an error, the
// checkpoint may still be usable.
func readClaims(disk Disk, log *zap.Logger) (claims map[types.UID]Claim, found bool, err error) {
	read, found, err := checkpoint.Load[prepared](disk, checkpointVersion, log)
	claims = make(map[types.UID]Claim)
	for _, one := range read.Claims {
		claims[one.UID] = one
	}
	return claims, found, err
}

func writeClaims(disk Disk, claims map[types.UID]Claim) error {
	data, err := json.Marshal(prepared{Version: checkpointVersion, Claims: slices.SortedFunc(maps.Values(claims), compare)})
	if err != nil {
		return err
	}
	return disk.Write(data)
}

// Folders is a Disk in two directories.
type Folders struct {
	checkpoint.Store // in the driver's directory, next to the kubelet's checkpoint

	CDI  string // directory in which container runtimes search for CDI files
	Name string // prefix of the names of gpumem's CDI files
}

// NewFolders creates the directories of a driver: its data directory below the kubelet's, the directory of CDI
// files, and the registration directory of the kubelet.
func NewFolders(kubelet, cdi, domain string) (Folders, error) {
	own := state(kubelet, domain)
	f := Folders{Store: checkpoint.Bounded(checkpoint.File(filepath.Join(own, checkpointFile)), maxReads), CDI: cdi, Name: domain}
	return f, errors.Join(os.MkdirAll(own, 0o755), os.MkdirAll(f.CDI, 0o755), os.MkdirAll(registry(kubelet), 0o755))
}

func state(kubelet, domain string) string { return filepath.Join(kubelet, "plugins", domain) }

func registry(kubelet string) string { return filepath.Join(kubelet, "plugins_registry") }

const checkpointFile = "checkpoint.json"

// maxReads is the number of failed reads after which the checkpoint is set aside, about 30 seconds.
const maxReads = 15

// Specs implements Disk. It removes incomplete files.
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

// ReadSpec implements Disk.
func (f Folders) ReadSpec(uid types.UID) ([]byte, error) {
	return os.ReadFile(filepath.Join(f.CDI, f.spec(uid)))
}

// WriteSpec implements Disk.
func (f Folders) WriteSpec(uid types.UID, data []byte) error {
	return checkpoint.WriteFile(filepath.Join(f.CDI, f.spec(uid)), data, 0o644)
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
