package cdi

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/atomicfile"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// class is what the kind of the GPUs has after the domain.
const class = "gpu"

// Kind is the kind of the GPUs under a domain: a GPU's name is KIND=UUID.
func Kind(domain string) string { return domain + "/" + class }

// retry is how long after a file that could not be written the next try is made.
const retry = 10 * time.Second

// A Writer keeps the file.
type Writer struct {
	Domain     string
	Dir        string // where the container runtime looks for such files
	Hook       string // the path of nvidia-cdi-hook on the node
	DriverRoot string // of the driver, as this process sees it
	NodeRoot   string // the same, as the node has it

	Open   func() (lib nvml.Interface, path string)
	Source inventory.Source
	Log    *zap.Logger
}

// Run writes the file whenever the node has other GPUs, or another driver, whose version is in the
// names of its files, until the context is done.
func (w *Writer) Run(ctx context.Context) error {
	var written []string
	for {
		inv, _, changed := w.Source.Inventory()
		is := []string{inv.DriverVersion}
		for _, d := range inv.Devices {
			is = append(is, string(d.UUID))
		}
		var again <-chan time.Time
		if len(inv.Devices) > 0 && !slices.Equal(is, written) {
			if err := w.Write(); err != nil {
				w.Log.Error("the GPUs cannot be described to the container runtime: containers do not get those that are new", zap.Error(err))
				again = time.After(retry)
			} else {
				written = is
				w.Log.Info("described the GPUs to the container runtime", zap.String("file", w.file()))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

func (w *Writer) file() string { return filepath.Join(w.Dir, w.Domain+"-"+class+".json") }

// Write writes the file.
func (w *Writer) Write() error {
	lib, _ := w.Open()
	byUUID, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return err
	}
	described, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(lib), nvcdi.WithLogger(quiet{w.Log.Sugar()}),
		nvcdi.WithVendor(w.Domain), nvcdi.WithClass(class), nvcdi.WithDeviceNamers(byUUID),
		nvcdi.WithDriverRoot(w.DriverRoot), nvcdi.WithDevRoot(w.DriverRoot), nvcdi.WithNVIDIACDIHookPath(w.Hook),
	)
	if err != nil {
		return fmt.Errorf("describe the GPUs by NVIDIA's library: %w", err)
	}
	spec, err := described.GetSpec()
	if err != nil {
		return fmt.Errorf("describe the GPUs by NVIDIA's library: %w", err)
	}
	raw := spec.Raw()
	onNode := root.New(root.WithRoot(w.DriverRoot), root.WithTargetRoot(w.NodeRoot), root.WithRelativeTo("host"))
	if err := onNode.Transform(raw); err != nil {
		return fmt.Errorf("describe the GPUs by NVIDIA's library: %w", err)
	}
	return atomicfile.WriteJSON(w.file(), raw, 0o644)
}

// quiet has what NVIDIA's library says in the log of debugging: most of it is of libraries that
// this driver does not have.
type quiet struct{ log *zap.SugaredLogger }

func (q quiet) Debugf(format string, args ...any)   { q.log.Debugf(format, args...) }
func (q quiet) Errorf(format string, args ...any)   { q.log.Debugf(format, args...) }
func (q quiet) Infof(format string, args ...any)    { q.log.Debugf(format, args...) }
func (q quiet) Warningf(format string, args ...any) { q.log.Debugf(format, args...) }
func (q quiet) Tracef(format string, args ...any)   { q.log.Debugf(format, args...) }
