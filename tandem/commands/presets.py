"""`tandem presets`: every preset in a sentence, those that most people need first."""

import json

import click

from tandem.commands.help_groups import write_sections
from tandem.commands.options import json_option

USUAL = {
    "auto": "Picks the fastest way to draft; where drafts do not help, the large model writes"
    " by itself. The default.",
    "ar": "The large model alone, without drafts: to compare with.",
    "dragon-coupled": "Answer from documents on the device and in the cloud. The default with"
    " --rag.",
}
"""What each of the presets does that most people need."""

OTHERS = {
    "coupled": "Send ids of draft tokens only. Both sides draw with the same random numbers, so"
    " that the text depends on the target, the prompt and the seed alone.",
    "stream": "As coupled, without rounds: drafts are always under way, and the cloud decodes while"
    " none has arrived.",
    "cloud-draft": "The large model and a draft model beside it, both in the cloud; nothing is"
    " drafted on the edge.",
    "dssd": "Rejection sampling with one probability per draft token; the edge draws the"
    " replacement from a small lossless payload.",
    "dssd-full": "As dssd, with the target's full distribution as payload, as published.",
    "dsd": "Rejection sampling with the full distribution of each draft token (baseline).",
    "split": "The target's first layers at the edge, the others in the cloud; hidden states travel"
    " (baseline).",
    "tslt": "As dsd, with draft distributions that are truncated before sampling.",
    "tslt-after": "As tslt, with draft distributions that are truncated after sampling. Lossy.",
    "mc-dsd": "As tslt, with a tree of draft tokens.",
    "fsd": "As dssd; early exits of the target show for which outcomes to draft ahead.",
    "picospec": "As dssd; the edge goes on drafting while the cloud verifies.",
    "picospec-preverify": "As picospec; the cloud prepares drafts as they arrive, and judges whole"
    " chunks, as published.",
    "picospec-top-k": "As picospec, with the target's most likely tokens as payload. Lossy.",
}
"""The other presets of speculative decoding."""

OF_DOCUMENTS = {
    "dragon": "One side decides each token by the distributions of both sides; the role moves to"
    " the side that is expected to be faster.",
    "dragon-device": "As dragon; the device decides.",
    "dragon-lossy": "As dragon, with distributions truncated after sampling, as in the published"
    " program. Lossy.",
    "drdg-tw": "The device decides, and both sides wait for every token (baseline).",
    "drdg-sw": "One side's documents for the whole answer, chosen at random (baseline). Lossy.",
    "crcg-device": "From the device's documents only, all in one sequence (baseline).",
    "crcg-cloud": "From the cloud's documents only, all in one sequence (baseline).",
    "drcg-text": "The device alone, which fetches the cloud's documents first and puts all into one"
    " sequence (baseline).",
    "drcg-kv": "As drcg-text, with keys and values of the documents (baseline).",
}
"""The other presets of answers from documents."""


@click.command()
@json_option("Print one JSON object: a sentence for each preset.")
def presets(as_json: bool) -> None:
    """List the decoding methods that --preset can name.

    Most people need the first three. 'tandem generate --set FIELD=VALUE' changes single choices of
    a preset.
    """
    if as_json:
        click.echo(json.dumps(USUAL | OTHERS | OF_DOCUMENTS))
        return
    formatter = click.get_current_context().make_formatter()
    sections = {
        "For most uses": USUAL,
        "Other methods": OTHERS,
        "Other methods that answer from documents": OF_DOCUMENTS,
    }
    write_sections(formatter, [(title, [*rows.items()]) for title, rows in sections.items()])
    click.echo(formatter.getvalue().strip("\n"))
