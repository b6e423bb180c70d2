package memoryzoo;

import java.util.Map;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.cjk.CJKAnalyzer;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.opensearch.index.analysis.AnalyzerProvider;
import org.opensearch.index.analysis.AnalyzerScope;
import org.opensearch.index.analysis.PreBuiltAnalyzerProvider;
import org.opensearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.opensearch.plugins.AnalysisPlugin;
import org.opensearch.plugins.Plugin;

/** The analyzers `english` and `cjk` of a full distribution, which are Lucene's own. */
public class Analyzers extends Plugin implements AnalysisPlugin {
    @Override
    public Map<String, AnalysisProvider<AnalyzerProvider<? extends Analyzer>>> getAnalyzers() {
        return Map.of("english", of(new EnglishAnalyzer()), "cjk", of(new CJKAnalyzer()));
    }

    private static AnalysisProvider<AnalyzerProvider<? extends Analyzer>> of(Analyzer analyzer) {
        return (index, environment, name, settings) ->
                new PreBuiltAnalyzerProvider(name, AnalyzerScope.INDICES, analyzer);
    }
}
