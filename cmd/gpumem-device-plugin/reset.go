package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/nvml"
	"github.com/gpumem/gpumem/pkg/process/daemon"
)

// resetCommand is the first argument that makes the program record a reset of GPUs by an administrator.
const resetCommand = "was-reset"

// runReset removes GPUs from the list of GPUs that need a reset.
func runReset(args []string, stdout io.Writer) error {
	f := pflag.NewFlagSet("gpumem-device-plugin was-reset", pflag.ContinueOnError)
	gpus := f.StringSlice("gpus", nil, "`UUIDs` of the GPUs that were reset, with commas between them")
	kubeletDir := f.String("kubelet-dir", defaultKubeletDir, "`directory` of the kubelet, with device-plugins in it")
	err := daemon.Parse(f, `gpumem-device-plugin was-reset returns GPUs to use that were reset after an XID.

Usage: gpumem-device-plugin was-reset --gpus=UUID [flags]`, args, stdout)
	switch {
	case err != nil:
		return err
	case len(*gpus) == 0:
		return errors.New("--gpus is empty: name the UUIDs of the GPUs that were reset")
	}
	var ids []gpu.UUID
	for _, id := range *gpus {
		ids = append(ids, gpu.UUID(id))
	}
	unknown, err := nvml.ClearResets(resetsFile(*kubeletDir), ids...)
	if err != nil {
		return err
	}
	if len(unknown) > 0 {
		return fmt.Errorf("no reset is recorded as needed for %v", unknown)
	}
	fmt.Fprintln(stdout, "the device plugin returns the GPUs to use after three good probes")
	return nil
}
