"""Settings of the drafter."""

from pathlib import Path

from pydantic import Field, field_validator

from tandem.control.objective import Aim, Prices, weights_of
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tandem.services.drafter.cloud.listed import clouds_of
from tandem.settings import MeasuredSettings, ModelSettings, Port, Price


class DrafterSettings(ModelSettings, MeasuredSettings):
    """What the drafter can be told; see `tandem.settings` for where from."""

    port: Port = Field(default=50052, description="gRPC port; 0 takes a free one.")
    verifier: str = Field(
        default="127.0.0.1:50051",
        min_length=1,
        description="Address of the verifier. Several with commas between them: of one target"
        " model, among which sessions choose and move; each as ADDRESS [price=PRICE], the price of"
        " a second of its model.",
    )
    verifiers_file: Path | None = Field(
        default=None,
        description="File with such a verifier on each line, in the place of the setting; it is"
        " read again when it changes.",
    )
    public_prompts_file: Path | None = Field(
        default=None,
        description="System prompts that are no secret, a JSON list of texts: what requests that"
        " begin with one have in common is computed once for all tenants, at both ends.",
    )
    price_weight: Price = Field(
        default=1.0,
        description="What prices count in the choice of a verifier. 1: one that is twice as dear"
        " must be twice as fast. 0: nothing.",
    )

    hedge_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Of several verifiers a second one is asked too where the first is silent for"
        " longer than usual: for at most this share of the rounds. 0: never.",
    )

    @field_validator("verifier")
    @classmethod
    def _several(cls, text: str) -> str:
        try:
            clouds_of(text)
        except InvalidArgument as error:
            raise ValueError(error.why) from None
        return text

    model: str = Field(
        default=str(demo_folder("demo-draft")),
        min_length=1,
        description="Draft model: folder or hub name.",
    )
    target_tokenizer: str | None = Field(
        default=None,
        min_length=1,
        description="Tokenizer of the target, where it is not the draft model's: a folder with its"
        " files and config.json, or NAME@COMMIT of a hub model.",
    )
    max_sessions: int = Field(default=32, ge=1, description="Requests served at once.")
    kv_budget_bytes: int = Field(
        default=2**30, ge=2**20, description="Keys and values of all requests together."
    )
    ping_after_s: float = Field(
        default=0.8, gt=0, description="A cloud silent for so long is pinged."
    )
    dead_after_s: float = Field(
        default=2.4, gt=0, description="A cloud silent for so long is taken for lost."
    )
    give_up_after_s: float = Field(
        default=2.6, gt=0, description="A cloud lost for so long is given up, by policy."
    )
    objective: str = Field(
        default="latency",
        description="What the preset auto goes for where a request does not say: latency, cost"
        " (target passes, or money where prices are given), energy (of the edge), a number between"
        " 1 (latency) and 0 (cost), or parts as latency=2,cost=1,energy=1.",
    )
    price_cloud_second: Price = Field(
        default=0.0, description="Of a second of the cloud's model, in any currency."
    )
    price_gigabyte: Price = Field(default=0.0, description="Of 10^9 bytes on the link.")
    price_edge_watt_second: Price = Field(default=0.0, description="Of a joule at the edge.")
    edge_watts: Price = Field(
        default=10.0,
        description="What the edge draws while it drafts, beyond what it draws idle.",
    )
    edge_idle_watts: Price = Field(default=2.0, description="What the edge draws all the time.")

    @field_validator("objective")
    @classmethod
    def _is_objective(cls, text: str) -> str:
        try:
            weights_of(text)
        except InvalidArgument as error:
            raise ValueError(str(error)) from None
        return text


def aim_of(settings: DrafterSettings) -> Aim:
    """What answers should be good at, as the settings say."""
    prices = Prices(
        settings.price_cloud_second,
        settings.price_gigabyte,
        settings.price_edge_watt_second,
        settings.edge_watts,
        settings.edge_idle_watts,
    )
    return Aim(settings.objective, prices)
