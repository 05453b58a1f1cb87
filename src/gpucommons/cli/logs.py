"""Log lines as text, or as one JSON object per line. Names in them come from users: they are escaped."""

import json
import logging
import sys
import time

from gpucommons.base.text import printable_json, printable_lines


class HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        lines = [f"{clock} {level}{record.getMessage()}"]
        # Indented, so that a line of an exception's text does not look like a log line.
        lines += [f"  {line}" for line in self.formatException(record.exc_info).splitlines()] if record.exc_info else []
        return printable_lines(lines).removesuffix("\n")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(line, ensure_ascii=False))


def configure(format: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else HumanFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
