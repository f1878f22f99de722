// Command gpumem-scheduler is kube-scheduler with the plugin GPUMemory in it.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the API client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the build
	"k8s.io/component-base/version/verflag"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/gpumem/gpumem/cmd/gpumem-scheduler/plugin"
	"github.com/gpumem/gpumem/pkg/process/daemon"
	"github.com/gpumem/gpumem/pkg/scheduler/lease"
	"github.com/gpumem/gpumem/pkg/scheduler/service"
)

// version is set by the linker.
var version = "dev"

func main() {
	if os.Getenv("GOGC") == "" {
		// gpumem needs less processor time than kube-scheduler alone but stores more per node and pod, so it collects
		// garbage earlier than by default.
		debug.SetGCPercent(80)
	}
	os.Exit(cli.Run(newCommand()))
}

func newCommand() *cobra.Command {
	kube := options.NewOptions()
	var conf service.Config
	var log daemon.Log
	cmd := &cobra.Command{
		Use: plugin.Self,
		Long: `gpumem-scheduler is kube-scheduler with the plugin GPUMemory in it, which places pods that ask
for GPU memory. It takes kube-scheduler's flags and configuration. Each profile must have the
plugin at all its points, and first at postFilter and bind.`,
		Args:              cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return kube.ComponentGlobalsRegistry.Set() },
		RunE:              func(cmd *cobra.Command, _ []string) error { return run(cmd, kube, &conf, log) },
	}
	sets := kube.Flags
	verflag.AddFlags(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	conf.AddFlags(sets.FlagSet("GPU memory"))
	log.AddFlags(sets.FlagSet("GPU memory"))
	for _, f := range sets.FlagSets {
		cmd.Flags().AddFlagSet(f)
	}
	cliflag.SetUsageAndHelpFunc(cmd, *sets, 0)
	return cmd
}

func run(cmd *cobra.Command, kube *options.Options, conf *service.Config, logFlags daemon.Log) error {
	verflag.PrintAndExitIfRequested()
	log, err := logFlags.New(cmd.ErrOrStderr())
	if err := errors.Join(conf.Complete(), err); err != nil {
		return err
	}
	if err := logsapi.ValidateAndApply(kube.Logs, utilfeature.DefaultFeatureGate); err != nil {
		return err
	}
	log.Info("starting", zap.String("version", version), zap.Any("options", daemon.Effective(cmd.Flags())))
	ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	state := plugin.NewState(log, version, *conf)
	cc, scheduler, err := app.Setup(ctx, kube, app.WithPlugin(plugin.Name, state.New))
	if err != nil {
		return err
	}
	for name, profile := range scheduler.Profiles {
		err = errors.Join(err, plugin.Check(name, profile.ListPlugins()))
	}
	err = errors.Join(err, state.CheckExtenders(cc.ComponentConfig.Extenders))
	if err != nil {
		return fmt.Errorf("the configuration of kube-scheduler: %w", err)
	}
	state.EnableHints(scheduler.Profiles)
	state.Binder.Leads = lease.LeadAlone(time.Now())
	if cc.LeaderElection != nil {
		lock, err := lease.Watch(cc.LeaderElection, time.Now, state.Binder.Drain)
		if err != nil {
			return fmt.Errorf("the configuration of kube-scheduler: %w", err)
		}
		state.Binder.Leads = lock.Leads
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return state.Run(ctx) })
	group.Go(func() error { defer cancel(); return app.Run(ctx, cc, scheduler) })
	return group.Wait()
}
