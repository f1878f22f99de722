package daemon

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Log configures a program's log.
type Log struct {
	Level  string // a level of zap: debug, info, warn, error
	Format string // json or console
}

// AddFlags adds the flags for the configuration.
func (l *Log) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&l.Level, "log-level", "info", "lowest `level` to log: debug (each question), info (each decision), warn or error")
	f.StringVar(&l.Format, "log-format", "json", "`format` of the log: json or console")
}

// Validate rejects an unknown level or format.
func (l Log) Validate() error {
	_, err := l.New(io.Discard)
	return err
}

// New returns a logger that writes to w.
func (l Log) New(w io.Writer) (*zap.Logger, error) {
	lowest, err := zapcore.ParseLevel(l.Level)
	if err != nil {
		return nil, fmt.Errorf("--log-level: %q, want debug, info, warn or error", l.Level)
	}
	cfg := zap.NewProductionEncoderConfig()
	cfg.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	cfg.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch l.Format {
	case "json":
		encoder = zapcore.NewJSONEncoder(cfg)
	case "console":
		encoder = zapcore.NewConsoleEncoder(cfg)
	default:
		return nil, fmt.Errorf("--log-format: %q, want json or console", l.Format)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(w), lowest)), nil
}
