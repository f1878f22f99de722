package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/cdi"
	"github.com/gpumem/gpumem/pkg/node/coexist"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/render"
	"github.com/gpumem/gpumem/pkg/node/speeds"
	"github.com/gpumem/gpumem/pkg/process/daemon"
)

// config contains the parsed flags.
type config struct {
	options

	names      api.Names
	devices    coexist.Selector
	speeds     speeds.Tables
	ignoreXIDs []uint64
	mode       enforcement.Mode
	plugin     deviceplugin.Config
}

// config parses the flags. It returns all errors at once.
func (o options) config() (config, error) {
	c := config{options: o, plugin: deviceplugin.DefaultConfig(o.nodeName)}
	var errs daemon.FlagErrors
	errs.Require(o.nodeName != "", "node-name", "is not set, nor is NODE_NAME")
	c.names = daemon.ParseFlag(&errs, "resource-domain", api.NewNames, o.domain)
	c.names.LabelPods = o.labelPods
	c.devices = daemon.ParseFlag(&errs, "devices", coexist.ParseSelector, o.devices)
	errs.Require(o.unitMiB >= 1, "unit-mib", "%d, want 1 or more", o.unitMiB)
	errs.Require(o.reserveMiB >= 0, "reserve-mib", "%d, want 0 or more", o.reserveMiB)
	c.speeds = daemon.ParseFlag(&errs, "gpu-speeds", speeds.Read, o.gpuSpeeds)
	errs.Require(o.probeInterval >= time.Second, "probe-interval", "%s, want 1s or more", o.probeInterval)
	c.ignoreXIDs = daemon.ParseFlag(&errs, "ignore-xids", parseXIDs, o.ignoreXIDs)
	errs.Require(o.unassigned == unassignedPlace || o.unassigned == unassignedRefuse, "unassigned", "%q, want place or refuse", o.unassigned)
	c.plugin.Policy = daemon.ParseFlag(&errs, "policy", api.ParseFallback, o.policy)
	c.plugin.Containers.Strategy = daemon.ParseFlag(&errs, "device-list-strategy", render.ParseStrategy, o.strategy)
	c.plugin.Containers.Frameworks = daemon.ParseFlag(&errs, "framework-env", render.ParseFrameworks, o.frameworkEnv)
	c.mode = daemon.ParseFlag(&errs, "enforcement", enforcement.ParseMode, o.enforcement)
	errs.Require(filepath.IsAbs(o.mpsDir), "mps-dir", "%q, want an absolute path: containers see it too", o.mpsDir)
	errs.Require(o.onOveruse == overuseWarn || o.onOveruse == overuseEvict, "on-overuse", "%q, want warn or evict", o.onOveruse)
	errs.Require(o.toleranceMiB >= 0, "overuse-tolerance-mib", "%d, want 0 or more", o.toleranceMiB)
	errs.Require(o.kubeletDir != "", "kubelet-dir", "is empty")
	c.kubeletRootDir = cmp.Or(o.kubeletRootDir, o.kubeletDir)
	errs.Require(!o.claims || filepath.IsAbs(c.kubeletRootDir), "kubelet-root-dir", "%q, want an absolute path: the kubelet sees it too", c.kubeletRootDir)
	const want = "%q, want an absolute path: the container runtime sees it too"
	errs.Require(!o.claims && o.cdiHook == "" || filepath.IsAbs(o.cdiDir), "cdi-dir", want, o.cdiDir)
	if o.cdiHook != "" {
		errs.Require(filepath.IsAbs(o.cdiHook), "cdi-hook", want, o.cdiHook)
		errs.Require(filepath.IsAbs(o.cdiNodeRoot), "cdi-driver-root-on-node", want, o.cdiNodeRoot)
		c.plugin.Containers.CDIKind = cdi.Kind(o.domain)
	}
	_, _, err := net.SplitHostPort(o.probeListen)
	errs.Add("probe-listen", err)
	c.plugin.PlaceUnassigned = o.unassigned == unassignedPlace
	c.plugin.Coreless = !o.cores
	c.plugin.Containers.MPSDir = o.mpsDir
	return c, errors.Join(append(errs, o.Validate())...)
}

func parseXIDs(list string) ([]uint64, error) {
	var out []uint64
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		xid, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: want numbers with commas between them", list)
		}
		out = append(out, xid)
	}
	return out, nil
}
