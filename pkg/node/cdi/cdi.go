package cdi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// class is what the kind of the GPUs has after the domain.
const class = "gpu"

// Kind is the kind of the GPUs under a domain: a GPU's name is KIND=UUID.
func Kind(domain string) string { return domain + "/" + class }

// retry is how often the file is looked at, and written again where it could not be written or is another.
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

	latest  *inventory.Latest // the source's, with the GPUs unhealthy that the file does not describe
	written []string          // the driver and the GPUs in the file
	file    os.FileInfo
	failed  error
}

// NewWriter returns a writer that offers the source's GPUs once it has described them.
func NewWriter(w Writer) *Writer {
	inv, reason, _ := w.Source.Inventory()
	w.latest = inventory.NewLatest(inv, reason)
	w.publish(inv, reason)
	return &w
}

// Inventory implements inventory.Source.
func (w *Writer) Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{}) {
	return w.latest.Inventory()
}

// Run writes the file whenever the node has other GPUs, or another driver, whose version is in the
// names of its files, or the file is not the one that was written, until the context is done.
func (w *Writer) Run(ctx context.Context) error {
	for {
		inv, reason, changed := w.Source.Inventory()
		is := []string{inv.DriverVersion}
		for _, d := range inv.Devices {
			is = append(is, string(d.UUID))
		}
		if len(inv.Devices) > 0 && (!slices.Equal(is, w.written) || !w.intact()) {
			w.describe(is)
		}
		w.publish(inv, reason)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(retry):
		}
	}
}

// describe writes the file, and logs each new outcome.
func (w *Writer) describe(is []string) {
	err := w.Write()
	if err == nil {
		w.file, err = os.Stat(w.path())
	}
	switch {
	case err == nil:
		w.written = is
		w.Log.Info("described the GPUs to the container runtime", zap.String("file", w.path()))
	case w.failed == nil || w.failed.Error() != err.Error():
		w.Log.Error("the GPUs cannot be described to the container runtime", zap.Error(err))
	}
	w.failed = err
}

// intact reports whether the file is still the one that was written.
func (w *Writer) intact() bool {
	now, err := os.Stat(w.path())
	return err == nil && w.file != nil && os.SameFile(now, w.file) && now.ModTime().Equal(w.file.ModTime())
}

// publish makes the GPUs known. A GPU that the file does not describe takes no pod: the container runtime would not find it.
func (w *Writer) publish(inv gpu.Inventory, reason string) {
	intact := w.intact()
	for i := range inv.Devices {
		d := &inv.Devices[i]
		if intact && slices.Contains(w.written, string(d.UUID)) || !d.Status.Works() {
			continue
		}
		why := "the container runtime does not know it: " + w.path() + " is not written yet"
		if w.failed != nil {
			why = fmt.Sprintf("the container runtime does not know it: %v", w.failed)
		}
		d.Status = gpu.Unhealthy(why)
	}
	w.latest.Set(inv, reason)
}

func (w *Writer) path() string { return filepath.Join(w.Dir, w.Domain+"-"+class+".json") }

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
	return checkpoint.WriteJSON(w.path(), raw, 0o644)
}

// quiet has what NVIDIA's library says in the log of debugging: most of it is of libraries that
// this driver does not have.
type quiet struct{ log *zap.SugaredLogger }

func (q quiet) Debugf(format string, args ...any)   { q.log.Debugf(format, args...) }
func (q quiet) Errorf(format string, args ...any)   { q.log.Debugf(format, args...) }
func (q quiet) Infof(format string, args ...any)    { q.log.Debugf(format, args...) }
func (q quiet) Warningf(format string, args ...any) { q.log.Debugf(format, args...) }
func (q quiet) Tracef(format string, args ...any)   { q.log.Debugf(format, args...) }
