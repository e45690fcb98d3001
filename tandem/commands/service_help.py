"""`tandem serve SERVICE --help`: the settings of a service as flags, in groups like those of other
commands."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from tandem.commands.help_groups import OptionGroup, sections_of, write_sections

HELP = ("-h", "--help")
HELP_ALL = "--help-all"

GROUPS = (
    OptionGroup(
        "Model",
        ("model", "engine", "device", "dtype", "threads", "cloud_draft"),
        (
            *("revision", "target_tokenizer", "exits", "reranker", "gpu_layers", "kv_cells"),
            *("batch_invariant", "tensor_parallel", "pipeline_parallel", "executor"),
            "stuck_after_s",
            *("split_model", "split_layers"),
            *("cloud_draft_engine", "cloud_draft_device", "cloud_draft_dtype"),
        ),
    ),
    OptionGroup("Sampling", ("generation_config",)),
    OptionGroup(
        "Schedule",
        (),
        (
            *("max_draft_length", "profile_file"),
            *("prometheus", "prometheus_labels", "prometheus_instance"),
        ),
    ),
    OptionGroup(
        "Link",
        ("host", "port", "verifier", "drafter", "side", "role", "cloud", "retriever"),
        (
            *("verifiers_file", "decoder"),
            *("own_side", "ping_after_s", "dead_after_s", "give_up_after_s"),
            *("max_message_bytes", "first_message_s", "idle_stream_s", "unread_answer_s"),
        ),
    ),
    OptionGroup(
        "HTTP",
        ("http", "http_host", "http_port", "http_keys_file", "http_page", "http_documents"),
        (
            *("http_tls_certificate", "http_tls_key", "http_hosts", "http_origins", "http_docs"),
            *("http_link_control", "http_embedding_aliases", "http_max_tokens"),
            *("http_max_choices", "http_max_requests", "http_max_connections"),
            *("http_max_body_bytes", "http_body_bytes_per_s", "http_write_timeout_s"),
        ),
    ),
    OptionGroup(
        "Keys and certificates",
        ("insecure", "tls_certificate", "tls_key", "tls_ca", "keys_file", "call_key_file"),
        ("cloud_key_file", "reflection"),
    ),
    OptionGroup(
        "Documents",
        ("documents", "folder", "embedding"),
        (
            *("question_embedding", "question_prefix", "passage_prefix"),
            *("dsn", "chunk_tokens", "overlap_tokens", "owner_max_documents", "owner_max_bytes"),
            *("document_kv_budget_bytes", "document_kv_folder", "document_kv_disk_bytes"),
            *("document_kv_export", "extraction_processes"),
            "extraction_cpu_s_per_minute",
        ),
    ),
    OptionGroup(
        "Limits",
        ("max_sessions", "max_running", "max_waiting", "kv_budget_bytes", "request_timeout_s"),
        (
            *("max_searches", "max_ingests", "quota_sessions", "quota_kv_bytes"),
            *("quota_requests_per_minute", "quota_tokens_per_minute"),
            *("quota_grammar_s_per_minute", "prefix_kv_bytes", "prefix_kv_holder_bytes"),
            *("share_prefixes", "public_prompts_file"),
            *("memory_tokens", "memory_total_tokens"),
            *("cloud_memory_tokens", "cloud_memory_total_tokens"),
        ),
    ),
    OptionGroup(
        "Output",
        ("config", "log_level", "metrics_port", "drain_s", "help", "help_all"),
        (
            *("metrics_host", "metrics_vllm_names", "health_port"),
            *("trace_endpoint", "trace_sample"),
        ),
    ),
)


def write_service_help(ctx: click.Context, service: str, *, everything: bool) -> None:
    """Print the help of `service` to standard output."""
    settings: Any = import_module(f"tandem.services.{service}.config")
    model = getattr(settings, f"{service.capitalize()}Settings")
    own = [OptionGroup(*base.HELP_GROUP) for base in model.__mro__ if "HELP_GROUP" in vars(base)]
    rows = {name: _row(name, field) for name, field in model.model_fields.items()}
    rows["help"] = (", ".join(HELP), "Show this message and exit.")
    rows["help_all"] = (HELP_ALL, "Show all flags, including those that few people need.")
    formatter = ctx.make_formatter()
    formatter.write_usage(f"tandem serve {service}", "[FLAGS]")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(
            f"Run the {service} until a signal. Each flag is also a variable, TANDEM_ and its name"
            " in capitals with underscores, and a key of the file named by --config."
        )
    groups = (*GROUPS, *own)
    write_sections(formatter, sections_of(groups, rows, everything=everything))
    click.echo(formatter.getvalue(), nl=False)


def _row(name: str, field: Any) -> tuple[str, str]:
    flag = "--" + name.replace("_", "-")
    default = field.get_default(call_default_factory=True)
    if field.annotation is bool:
        return f"{flag} [true|false]", f"{field.description}  [default: {str(default).lower()}]"
    shown = "" if default in (None, "") else f"  [default: {default}]"
    return f"{flag} VALUE", f"{field.description}{shown}"
