"""LangChain: chat, streams, structured output, tools, and retrieval over our embeddings."""

from __future__ import annotations

from asked import EMBEDDING, KEY, MAX_TOKENS, MODEL, QUESTION, SEARCH, TEXTS, V1, Add, tell
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

model = ChatOpenAI(
    base_url=V1, api_key=KEY, model=MODEL, temperature=0, max_completion_tokens=MAX_TOKENS
)
longer = ChatOpenAI(base_url=V1, api_key=KEY, model=MODEL, temperature=0)
parsed = longer.with_structured_output(Add, method="json_schema").invoke(QUESTION)
called = longer.with_structured_output(Add, method="function_calling").invoke(QUESTION)
vectors = OpenAIEmbeddings(base_url=V1, api_key=KEY, model=EMBEDDING)  # it sends token ids
store = InMemoryVectorStore.from_texts(TEXTS, vectors)
tell(
    text=model.invoke(QUESTION).content,
    streamed="".join(part.content for part in model.stream(QUESTION)),
    parsed=parsed.model_dump(),
    called=called.model_dump(),
    vectors=vectors.embed_documents(TEXTS),
    nearest=store.similarity_search(SEARCH, k=1)[0].page_content,
)
